"""Advice from what a probe measured: worth training or not, which reference, which layers, which clip.

Each sentence comes with its rule and the numbers behind it. The rules are what is known so far:

    train       the teacher's reading of the student's answers prefers right ones, and the problem's own reference adds
                to that before an answer's last tenth: both intervals say so. One of five tasks read so, and gained; of
                the four where only the first held one gained (docs/evidence/probe.md)
    reference   the projected target has at least twice the student's attention on what a step needs (the gate); with
                1.4 times and less nothing was gained, nor at the one head with 4.5 times (docs/evidence/lookup.md)
    layers      those whose attention is on what a step needs; the last layer is usually not among them
    support     template tokens say nothing about the problem; try without them if they have a third of the loss. That
                helped on the embedded task and not on arithmetic (docs/evidence/ablations.md, arithmetic.md)
    clip        per token or none: the pointwise clip is no divergence and can step away from the teacher. None with
                reverse KL, where the per-token clip cost half of the gain (docs/evidence/ablations.md)
"""

from typing import Any

from opasd.choices import Clip

Advice = dict[str, Any]
"""`about`, `says` (one or two sentences), `rule` and `numbers`."""
TEMPLATE = 1 / 3


def advise(
    summary: dict[str, Any] | None, looks: dict[str, Any] | None, clip: Clip, divergence: str = "forward_kl"
) -> list[Advice]:
    """Return the advice that these summaries allow; either may be missing. Clip and divergence are the token loss's."""
    advice = [_advice("train", _NOT_SAMPLED, _TRAIN) if summary is None else _train(summary)]
    if looks is None:
        advice.append(_advice("reference", _NOT_LOOKED, "the gate and the layers that look, which --look measures"))
    else:
        advice += [_reference(looks), *_layers(looks), *_support(looks)]
    return [*advice, _clip(clip, divergence)]


_TRAIN = "right answers are preferred to wrong ones, and before an answer's last tenth the own reference adds to that"
_NOT_SAMPLED = "Whether training is worth it was not measured: give --samples 4."
_NOT_LOOKED = "Which reference and which layers to compare, if any, was not measured: give --look."


def _advice(about: str, says: str, rule: str, **numbers: Any) -> Advice:
    return {"about": about, "says": says, "rule": rule, "numbers": numbers}


def _train(summary: dict[str, Any]) -> Advice:
    figure, verdict, rule = summary["preference"], summary["verdict"], _TRAIN
    numbers = {name: summary[name] for name in ("preference", "own_adds", "own_adds_before_the_end")}
    numbers["student"] = summary["student"]["accuracy"]
    if verdict == "above":
        prefers = f"training: the teacher prefers right answers to wrong ones in {_share(figure)} of the pairs"
        adds = summary["own_adds_before_the_end"] or summary["own_adds"]
        added = f" ({_share(adds)})" if adds else ""
        if adds and adds["low"] > 0:
            says = f"Worth {prefers}, and the problem's own reference adds to that{added}."
        else:
            says = f"Perhaps worth {prefers}. It is not shown that the problem's own reference adds to that before an "
            says += f"answer's end{added}. GSM8K and MATH read so and gained nothing; the embedded task read so and "
            says += "gained. Make a short run first."
        return _advice("train", says, rule, **numbers)
    if verdict == "below":
        says = f"Not worth training: the teacher prefers wrong answers ({_share(figure)} for right ones)."
        return _advice("train", f"{says} Try another reference.", rule, **numbers)
    if verdict == "open":
        says = f"Not shown to be worth training: the teacher prefers right answers in {_share(figure)} of the pairs."
        return _advice("train", f"{says} Try another reference, or more --problems.", rule, **numbers)
    says = "Whether training is worth it cannot be said: too few problems have both right and wrong answers."
    return _advice("train", says, rule, **numbers)


def _reference(looks: dict[str, Any]) -> Advice:
    gates = {name: figures["gate"] for name, figures in looks["references"].items() if figures["gate"]}
    times = looks["rule"]["gate"]
    where = ", ".join(map(str, looks["gate_layers"]))
    rule = f"the gate: the projected target has {times:g} times the student's mass or more at layers {where or '–'}"
    if not gates:
        problem = looks["references"][looks["own_reference"]]["loss"]["problem"][-1]["mean"]
        says = "Whether attention can help was not measured: what a step needs is not known. At the last layer the "
        says += f"problem has {problem:.0%} of the attention loss."
        return _advice("reference", says, rule, problem_share=problem)
    best = max(gates, key=lambda name: gates[name]["ratio"] or 0.0)
    gate = gates[best]
    masses = f"{gate['projected']:.3f} beside the student's {gate['student']:.3f}"
    if gate["verdict"] == "passes":
        says = f"Attention supervision has a chance with {best} as the reference: its target has {masses}. "
        says += "Train the token loss alone beside it: at the one head that has passed so far nothing was gained."
    elif gate["verdict"] == "open":
        says = f"Attention supervision may have a chance with {best} as the reference: its target has {masses}, "
        says += f"not clearly {times:g} times as much; give more --problems."
    else:
        says = f"Train the token loss alone (--attention-weight 0): the best target, with {best} as the reference, "
        says += f"has {masses} on what a step needs, less than {times:g} times as much. "
        says += "With 1.4 times nothing was gained."
    return _advice("reference", says, rule, **gates)


def _layers(looks: dict[str, Any]) -> list[Advice]:
    layers, last = looks["looking_layers"], looks["layers"] - 1
    rule = looks["rule"]
    if layers is None:
        says = (
            "Which layers look cannot be said for these problems; the default is the last (objective.attention.layers)."
        )
        return [_advice("layers", says, "what a step needs is known for tasks made by code alone")]
    text = f"student's mass at least {rule['of_best']:g} of the best layer's and {rule['of_uniform']:g} times uniform"
    student = [figure["mean"] for figure in looks["references"][looks["own_reference"]]["student"]]
    numbers = {"student": student, "uniform": looks["uniform"], "layers": layers}
    if not layers:
        return [_advice("layers", "No layer clearly looks at what a step needs.", text, **numbers)]
    best = max(layers, key=lambda layer: student[layer])
    says = f"If attention is supervised, compare layers [{', '.join(map(str, layers))}] (objective.attention.layers): "
    says += f"layer {best} has "
    says += f"{student[best]:.3f} of its attention on what a step needs"
    says += f", the last layer {student[last]:.3f}." if last not in layers else "; the last layer is among them."
    return [_advice("layers", says, text, **numbers)]


def _support(looks: dict[str, Any]) -> list[Advice]:
    loss = looks["references"][looks["own_reference"]]["loss"]
    chosen = looks["looking_layers"] or [looks["layers"] - 1]
    shares = {part: sum(figures[layer]["mean"] for layer in chosen) / len(chosen) for part, figures in loss.items()}
    if shares["template"] < TEMPLATE:
        return []
    says = f"Try it without the template (objective.attention.support: content): it has {shares['template']:.0%} of "
    says += f"the attention loss, the problem {shares['problem']:.0%}."
    return [_advice("support", says, "the template's share of the attention loss is a third or more", **shares)]


def _clip(clip: Clip, divergence: str) -> Advice:
    rule = "per token or none, never pointwise; none with reverse KL"
    if clip == "pointwise":
        says = "Change objective.token.clip to per_token or none: the pointwise clip can step away from the teacher."
        return _advice("clip", says, rule, clip=clip)
    if clip == "pointwise_masked":
        says = "Change objective.token.clip to per_token or none: both gained more on arithmetic."
        return _advice("clip", says, rule, clip=clip)
    if clip == "per_token" and divergence == "reverse_kl":
        says = "Change objective.token.clip to none: with reverse KL the per-token clip cost half of arithmetic's gain."
        return _advice("clip", says, rule, clip=clip)
    return _advice("clip", f"Keep objective.token.clip: {clip}.", rule, clip=clip)


def _share(figure: dict[str, float]) -> str:
    return f"{figure['mean']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"
