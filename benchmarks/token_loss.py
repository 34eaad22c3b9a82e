"""Token loss, forward and backward, beside its peers; on the CPU the chunked version beside the plain definition.

    python benchmarks/token_loss.py [--tokens 1024,4096,16384] [--hidden 2048,2560,4096] [--json out.json]   # GPU
    python benchmarks/token_loss.py [--tokens 256]                                                            # CPU

Qwen3's vocabulary of 151,936, forward KL clipped per token, a frozen head shared by both roles.

On a GPU: bfloat16 at the hidden sizes of Qwen3 1.7B, 4B and 8B. `three products` are the matrix products that no
implementation can do without (two for the logits, one for the gradient), whole or in chunks of 1,024 tokens, whichever
is faster. `error` is that of the gradient against float64, on 256 tokens and without clipping. Who is further off than
10 times the naive bfloat16 computation gets no time; if the package's own are further off than it, nobody does. TRL
and Liger are measured where they are installed.

On a CPU: hidden size 256, float32. The two must agree to 1e-4 in loss and gradient before any time is printed. The
chunked version's memory does not grow with the tokens.
"""

import argparse
import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import Step, gpu_heading, heading, in_child, on_gpu, report, save, table
from torch import Tensor

from opasd.choices import Impl
from opasd.losses.token import OutputHead, token_loss
from opasd.losses.token_chunked import WORKSPACE_BYTES

VOCABULARY, HIDDEN = 151_936, 256
TEMPERATURE, THRESHOLD = 1.1, 0.05
PRODUCTS, NAIVE = "three products", "naive"


def inputs(tokens: int, vocabulary: int) -> tuple[Tensor, Tensor, OutputHead]:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, HIDDEN)
    teacher = hidden + 0.1 * torch.randn(tokens, HIDDEN)
    return hidden.requires_grad_(), teacher, OutputHead(torch.randn(vocabulary, HIDDEN) / HIDDEN**0.5)


def prepare(impl: Impl, tokens: int) -> Step:
    hidden, teacher, head = inputs(tokens, VOCABULARY)

    def step() -> None:
        hidden.grad = None
        token_loss(hidden, head, teacher, head, clip="per_token", impl=impl).loss.backward()

    return step


def check() -> None:
    hidden, teacher, head = inputs(40, 5_000)
    results: list[list[Tensor]] = []
    implementations: tuple[Impl, ...] = ("reference", "chunked")
    for impl in implementations:
        loss = token_loss(hidden, head, teacher, head, clip="per_token", impl=impl, chunk_tokens=7).loss
        results.append([loss.detach()[None], *torch.autograd.grad(loss, [hidden])])
    for expected, found in zip(*results, strict=True):
        error = float((found - expected).norm() / expected.norm())
        if not error < 1e-4:
            sys.exit(f"chunked differs from the definition by {error:.1e}: no times are printed")


def on_cpu(tokens: int) -> None:
    check()
    heading(f"Token loss, forward + backward: {tokens} tokens, vocabulary {VOCABULARY:,}, float32")
    plain = in_child(__file__, "--tokens", str(tokens), "--child", "reference")
    rows = [("plain definition", plain)]
    for length in map(str, (tokens, 4 * tokens)):
        rows += [(f"chunked, {length} tokens", in_child(__file__, "--tokens", length, "--child", "chunked"))]
    table(rows, plain)
    print(f"\nstated bound of the chunked version's workspace: {WORKSPACE_BYTES / 2**20:.0f} MiB at any length")


class Case(NamedTuple):
    hidden_TE: Tensor
    teacher_TE: Tensor
    weight_VE: Tensor


Loss = Callable[[Case, bool], Tensor]
"""The mean over tokens, clipped per token or not."""


def make_case(tokens: int, weight_VE: Tensor, generator: torch.Generator) -> Case:
    """Hidden states of a student and of a teacher not far from it; logits of up to about 20."""
    hidden_TE, noise_TE = torch.randn(2, tokens, weight_VE.shape[1], generator=generator, device="cuda")
    teacher_TE = (hidden_TE + 0.1 * noise_TE).bfloat16()
    return Case(hidden_TE.bfloat16().requires_grad_(), teacher_TE, weight_VE)


def naive(case: Case, clip: bool) -> Tensor:
    """All logits at once, in bfloat16 as the head gives them; the rest in float32 by autograd."""
    student_TV = ((case.hidden_TE @ case.weight_VE.T).float() / TEMPERATURE).log_softmax(-1)
    teacher_TV = ((case.teacher_TE @ case.weight_VE.T).float() / TEMPERATURE).log_softmax(-1)
    divergence_T = (teacher_TV.exp() * (teacher_TV - student_TV)).sum(-1)
    return (divergence_T.clamp(max=THRESHOLD) if clip else divergence_T).mean()


def ours(impl: Impl, **options: Any) -> Loss:
    def loss(case: Case, clip: bool) -> Tensor:
        head = OutputHead(case.weight_VE)
        settings = {"temperature": TEMPERATURE, "clip": "per_token" if clip else "none", "clip_threshold": THRESHOLD}
        return token_loss(case.hidden_TE, head, case.teacher_TE, head, impl=impl, **(settings | options)).loss

    return loss


def trl() -> Loss | None:
    """TRL's own function from its own file; of its trainers' module, which imports much else, it needs a no-op."""
    if importlib.util.find_spec("trl") is None:
        return None
    try:
        from trl.kernels.chunked_divergence import (  # pyright: ignore[reportMissingImports]
            ChunkedDivergenceFunction,
        )
    except (ImportError, RuntimeError):
        spec = importlib.util.find_spec("trl")
        assert spec is not None
        assert spec.origin is not None
        for name in [name for name in sys.modules if name == "trl" or name.startswith("trl.")]:
            del sys.modules[name]
        root = Path(spec.origin).parent
        for name, folder in (("trl", root), ("trl.trainer", root / "trainer")):
            package = types.ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
        utilities = types.ModuleType("trl.trainer.utils")
        vars(utilities)["maybe_gather_lm_head_ctx"] = lambda *_: contextlib.nullcontext()
        sys.modules["trl.trainer.utils"] = utilities
        from trl.kernels.chunked_divergence import (  # pyright: ignore[reportMissingImports]
            ChunkedDivergenceFunction,
        )

    def loss(case: Case, clip: bool) -> Tensor:
        divergence_T, _ = ChunkedDivergenceFunction.apply(
            case.hidden_TE, case.weight_VE, None, case.teacher_TE, case.weight_VE, None, 0.0, TEMPERATURE
        )
        return (divergence_T.clamp(max=THRESHOLD) if clip else divergence_T).mean()

    return loss


def liger() -> Loss | None:
    """It has no clipping: the loss is the mean of the divergence either way."""
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    from liger_kernel.ops.fused_linear_jsd import (  # pyright: ignore[reportMissingImports]
        LigerFusedLinearJSDFunction,
    )

    def loss(case: Case, clip: bool) -> Tensor:
        return LigerFusedLinearJSDFunction.apply(
            case.hidden_TE, case.weight_VE, case.teacher_TE, case.weight_VE, None, 0.0, -100, TEMPERATURE
        )

    return loss


def gradient(loss: Loss, case: Case, clip: bool = True) -> Tensor:
    return torch.autograd.grad(loss(case, clip), case.hidden_TE)[0]


def products(case: Case, chunk: int, seconds: float) -> dict[str, float]:
    hidden_TE = case.hidden_TE.detach()
    grad_TV = torch.randn(len(hidden_TE), VOCABULARY, dtype=torch.bfloat16, device="cuda")

    def step() -> None:
        for start in range(0, len(hidden_TE), chunk):
            rows = slice(start, start + chunk)
            torch.mm(hidden_TE[rows], case.weight_VE.T)
            torch.mm(case.teacher_TE[rows], case.weight_VE.T)
            torch.mm(grad_TV[rows], case.weight_VE)

    return on_gpu(step, seconds=seconds)


def errors(losses: dict[str, Loss], case: Case) -> dict[str, float]:
    """Of each gradient, against the definition in float64."""
    hidden_TE = case.hidden_TE.detach().double().requires_grad_()
    head = OutputHead(case.weight_VE.double())
    loss = token_loss(hidden_TE, head, case.teacher_TE.double(), head, temperature=TEMPERATURE, impl="reference").loss
    (truth_TE,) = torch.autograd.grad(loss, hidden_TE)
    return {
        name: float((gradient(loss, case, clip=False).double() - truth_TE).norm() / truth_TE.norm())
        for name, loss in losses.items()
    }


def on_cuda(
    tokens: list[int], hidden: list[int], seed: int, seconds: float, json_path: str | None, only: str | None
) -> None:
    found = gpu_heading(
        f"Token loss, forward + backward: bfloat16, vocabulary {VOCABULARY:,}, forward KL, clipped per token", seed
    )
    losses: dict[str, Loss | None] = {
        NAIVE: naive,
        "torch.compile of it": torch.compile(naive, dynamic=True),
        "chunked": ours("chunked"),
        "TRL tiled": trl(),
        "Liger fused JSD": liger(),
        "fused": ours("fused"),
        "fused, JSD pointwise": ours("fused", divergence="jsd", clip="pointwise"),
        "fused, top 20": ours("fused", top_k=20),
    }
    if only is not None:
        losses = {name: loss for name, loss in losses.items() if name in {NAIVE, "chunked", "fused", *only.split(",")}}
    same = [name for name in losses if not name.startswith("fused, ")]
    print(f"{'hidden':>6s} {'tokens':>6s}  {'':22s}{'ms':>9s}{'× products':>11s}{'MiB':>8s}{'error':>10s}")
    rows: list[dict[str, Any]] = []
    for size in hidden:
        generator = torch.Generator("cuda").manual_seed(seed)
        weight_VE = torch.randn(VOCABULARY, size, generator=generator, device="cuda").mul_(4 / size**0.5).bfloat16()
        present = {name: loss for name in same if (loss := losses[name]) is not None}
        error = errors(present, make_case(256, weight_VE, generator))
        for name in ("chunked", "fused"):
            if not error[name] <= error[NAIVE]:
                sys.exit(f"{name} is off by {error[name]:.1e}, naive bfloat16 by {error[NAIVE]:.1e}: no times")
        for length in tokens:
            rows += measure(losses, make_case(length, weight_VE, generator), error, seconds)
            save(json_path, found, rows)


def measure(
    losses: dict[str, Loss | None], case: Case, error: dict[str, float], seconds: float
) -> list[dict[str, Any]]:
    tokens, size = case.hidden_TE.shape
    bare = min((products(case, chunk, seconds) for chunk in {1024, tokens}), key=lambda result: result["seconds"])
    rows: list[dict[str, Any]] = []
    for name, loss in [(PRODUCTS, None), *losses.items()]:
        torch.cuda.empty_cache()
        row: dict[str, Any] = {"hidden": size, "tokens": tokens, "name": name, "error": error.get(name)}
        off = error.get(name, 0.0)
        if name == PRODUCTS:
            row |= bare
        elif loss is None:
            row["note"] = "not installed"
        elif not off <= 10 * error[NAIVE]:
            row["note"] = f"wrong by {off:.1e}, no time"
        else:
            try:
                row |= on_gpu(lambda loss=loss: gradient(loss, case), seconds=seconds)
            except torch.OutOfMemoryError:
                row["note"] = "out of memory"
        rows.append(row)
        print(f"{size:6d} {tokens:6d}  {name:22s}{describe(row, bare['seconds'])}", flush=True)
    print()
    return rows


def describe(row: dict[str, Any], bare: float) -> str:
    if "note" in row:
        return f"  {row['note']}"
    error = "" if row["error"] is None else f"{row['error']:.1e}"
    return f"{row['seconds'] * 1e3:9.2f}{row['seconds'] / bare:11.2f}{row['bytes'] / 2**20:8.0f}{error:>10s}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens")
    parser.add_argument("--hidden", default="2048,2560,4096")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.5, help="of measuring, for each figure on a GPU")
    parser.add_argument("--json", metavar="PATH", help="where to write the raw figures (GPU)")
    parser.add_argument("--only", metavar="NAMES", help="of the table's rows, besides naive, chunked and fused (GPU)")
    parser.add_argument("--child", metavar="IMPL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        report(lambda: prepare(arguments.child, int(arguments.tokens)), repeats=2)
    elif torch.cuda.is_available():
        tokens, hidden = arguments.tokens or "1024,4096,16384", arguments.hidden
        on_cuda(
            [int(number) for number in tokens.split(",")],
            [int(number) for number in hidden.split(",")],
            arguments.seed,
            arguments.seconds,
            arguments.json,
            arguments.only,
        )
    else:
        on_cpu(int(arguments.tokens or 256))


if __name__ == "__main__":
    main()
