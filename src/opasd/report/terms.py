"""What the words of a report mean, in a box."""

from opasd.report.text import safe

_TERMS = {
    "OPSD": "on-policy self-distillation. One model plays two roles: the student sees the problem, the teacher also a "
    "verified solution. The student answers, and learns the teacher's next-token distribution along its own answer.",
    "OPASD": "OPSD plus attention: the student also learns where the teacher looks, projected onto what the student "
    "can see. λ_attn is the weight of that part.",
    "ρ": "the share of the teacher's attention that is on the solution, which the student cannot see. The projection "
    "takes it away and scales the rest to sum to 1.",
    "JSD": "the Jensen–Shannon divergence: how far two distributions are apart, 0 if they are equal, at most ln 2.",
    "Avg@k": "the share of right answers over k samples for each problem. Pass@k: the share of problems with a right "
    "answer among k samples; Maj@k: with a right majority.",
}


def terms(*, open_: bool) -> str:
    """Return the box, open or folded."""
    rows = "".join(f"<dt>{safe(word)}</dt><dd>{safe(meaning)}</dd>" for word, meaning in _TERMS.items())
    summary = "<summary>What do OPSD, OPASD, ρ, JSD and Avg@k mean?</summary>"
    return f'<details class="terms"{" open" if open_ else ""}>{summary}<dl>{rows}</dl></details>'
