"""How often 95 % intervals hold the true value, by simulation: the package's against other methods.

    python benchmarks/intervals.py [--problems 30] [--samples 12] [--simulations 6000]

A problem's rate is drawn from a beta distribution, its right samples from a binomial one. The true value is the mean
over all such problems (for "these problems": over the drawn ones). Each cell is coverage in per cent / mean width in
points. The paired rows give the second model rates shifted on the logit scale: by δ, plus normal noise of deviation τ.
"""

import argparse
from collections.abc import Callable, Mapping
from math import comb

import numpy as np

from opasd.analysis.seeds import t_quantile
from opasd.evaluation.sampled import SampledScores
from opasd.evaluation.statistics import mean_limits, share_limits, wilson

SHAPES = {
    "easy": (6.0, 1.5),
    "middling": (1.5, 1.5),
    "hard": (0.3, 3.0),
    "very hard": (0.15, 2.5),
    "bimodal": (0.25, 0.25),
}
"""Rates of problems: a and b of Beta(a, b)."""
SHIFTS = ((0.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 1.0))
"""δ and τ of the second model."""
Z = 1.959964
Limits = tuple[np.ndarray, np.ndarray]
Method = Callable[[np.ndarray], Limits]


def methods(problems: int, generator: np.random.Generator) -> dict[str, Method]:
    """Return the methods that take a row of values for each simulation: [S, P] to two bounds [S]."""
    weights_RP = generator.multinomial(problems, np.full(problems, 1 / problems), size=2000) / problems
    t = t_quantile(problems - 1)

    def percentile(values_SP: np.ndarray) -> Limits:
        low, high = np.percentile(weights_RP @ values_SP.T, [2.5, 97.5], axis=0)
        return low, high

    def student(values_SP: np.ndarray) -> Limits:
        half = t * values_SP.std(1, ddof=1) / problems**0.5
        return values_SP.mean(1) - half, values_SP.mean(1) + half

    def bootstrap_t(values_SP: np.ndarray) -> Limits:
        mean, error = values_SP.mean(1), values_SP.std(1, ddof=1) / problems**0.5
        means_RS = weights_RP @ values_SP.T
        variances_RS = np.maximum(weights_RP @ (values_SP**2).T - means_RS**2, 1e-12)
        low, high = np.percentile((means_RS - mean) / np.sqrt(variances_RS / (problems - 1)), [2.5, 97.5], axis=0)
        return mean - high * error, mean - low * error

    return {"percentile": percentile, "t": student, "bootstrap-t": bootstrap_t}


def plain_wilson(values_SP: np.ndarray) -> Limits:
    """Wilson's interval with the effective number of trials and the normal quantile."""
    p, spread = values_SP.mean(1), values_SP.var(1, ddof=1)
    inflation = np.where(spread > 1e-12, spread / np.maximum(p * (1 - p), 1e-12), 1.0)
    return wilson(p, values_SP.shape[1] / inflation, Z)


def cell(limits: Limits, true: np.ndarray | float) -> str:
    low, high = limits
    covered = 100 * np.mean((low <= true + 1e-12) & (true <= high + 1e-12))
    return f"{covered:.1f} / {100 * np.mean(high - low):.1f}"


def of_these(counts_SP: np.ndarray, samples: int, scores: np.ndarray, simulations: int = 500) -> Limits:
    rows = [SampledScores(counts.tolist(), samples).estimate(scores.tolist()) for counts in counts_SP[:simulations]]
    return np.array([row.low for row in rows]), np.array([row.high for row in rows])


def print_table(rows: Mapping[str, Mapping[str, str]], title: str) -> None:
    names = list(next(iter(rows.values())))
    print(f"\n| {title} | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for label, cells in rows.items():
        print(f"| {label} | {' | '.join(cells[name] for name in names)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("problems", 30), ("samples", 12), ("simulations", 6000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    generator, n = np.random.default_rng(0), options.samples
    size = (options.simulations, options.problems)
    others = methods(options.problems, generator)
    avg, passes, paired = {}, {}, {}
    for shape, (a, b) in SHAPES.items():
        label = f"{shape}, Beta({a:g}, {b:g})"
        rates = np.clip(generator.beta(a, b, size), 1e-12, 1 - 1e-12)
        counts = generator.binomial(n, rates)
        shares = counts / n
        row = {"opasd": share_limits, "Wilson": plain_wilson} | others
        avg[label] = {name: cell(method(shares), a / (a + b)) for name, method in row.items()}
        avg[label]["opasd, these problems"] = cell(of_these(counts, n, np.arange(n + 1) / n), rates[:500].mean(1))
        for k in sorted({4, n}):
            scores = np.array([1 - comb(n - c, k) / comb(n, k) for c in range(n + 1)])
            true = float((1 - (1 - generator.beta(a, b, 10**6)) ** k).mean())
            cells = {name: cell(method(scores[counts]), true) for name, method in row.items() if name != "bootstrap-t"}
            zero = np.mean(np.subtract(*others["percentile"](scores[counts])) > -1e-12)
            cells["percentile of zero width, %"] = f"{100 * zero:.0f}"
            cells["opasd, these problems"] = cell(of_these(counts, n, scores), (1 - (1 - rates[:500]) ** k).mean(1))
            passes[f"{label}, Pass@{k}"] = cells
        for shift, noise in SHIFTS:

            def second(first: np.ndarray, shift: float = shift, noise: float = noise) -> np.ndarray:
                logits = np.log(first / (1 - first)) + shift + noise * generator.standard_normal(first.shape)
                return 1 / (1 + np.exp(-logits))

            large = np.clip(generator.beta(a, b, 2 * 10**6), 1e-12, 1 - 1e-12)
            true = float((second(large) - large).mean())
            gaps = (generator.binomial(n, second(rates)) - generator.binomial(n, rates)) / n
            row = {"opasd": lambda values: mean_limits(values, bound=1.0)} | others
            paired[f"{label}, δ {shift:g}, τ {noise:g}"] = {k: cell(method(gaps), true) for k, method in row.items()}
    print(f"{options.problems} problems x {n} samples, {options.simulations} simulations: coverage, % / width, points")
    print_table(avg, f"Avg@{n}")
    print_table(paired, "paired difference")
    print_table(passes, "Pass@k")


if __name__ == "__main__":
    main()
