"""Attention loss on the CPU, forward and backward: the chunked version beside the plain definition.

    python benchmarks/attention_loss.py [--tokens 2048]

Qwen3-like: 16 query heads, 8 key heads of size 128, float32; prompt 256, solution 512. The two must agree to 1e-4 in
loss and gradients before any time is printed.
"""

import argparse
import sys

import torch
from measure import Step, heading, in_child, report, table

from opasd.alignment import Alignment
from opasd.choices import Impl
from opasd.losses.attention import LayerAttention, attention_loss

HEADS, KEY_HEADS, HEAD_SIZE = 16, 8, 128
PROMPT, SOLUTION = 256, 512


def inputs(tokens: int) -> tuple[LayerAttention, LayerAttention, Alignment]:
    torch.manual_seed(0)
    prompt = torch.arange(PROMPT)
    response = torch.arange(tokens)
    alignment = Alignment(
        student_shared=torch.cat([prompt, PROMPT + response]),
        teacher_shared=torch.cat([prompt, PROMPT + SOLUTION + response]),
        in_prompt=torch.arange(PROMPT + tokens) < PROMPT,
        solution=torch.arange(PROMPT, PROMPT + SOLUTION),
        student_only=prompt[:0],
        teacher_only=prompt[:0],
        student_query=PROMPT - 1 + response,
        teacher_query=PROMPT + SOLUTION - 1 + response,
        student_length=PROMPT + tokens,
        teacher_length=PROMPT + SOLUTION + tokens,
    )

    def layer(length: int) -> LayerAttention:
        query, key = torch.randn(HEADS, tokens, HEAD_SIZE), torch.randn(KEY_HEADS, length, HEAD_SIZE)
        return LayerAttention(query.requires_grad_(), key.requires_grad_(), HEAD_SIZE**-0.5)

    return layer(alignment.student_length), layer(alignment.teacher_length).detach(), alignment


def prepare(impl: Impl, chunk: int, tokens: int) -> Step:
    student, teacher, alignment = inputs(tokens)

    def step() -> None:
        student.query_HTD.grad = student.key_KSD.grad = None
        attention_loss(student, teacher, alignment, impl=impl, chunk_queries=chunk).loss.backward()

    return step


def check() -> None:
    student, teacher, alignment = inputs(300)
    results: list[list[torch.Tensor]] = []
    implementations: tuple[Impl, ...] = ("reference", "chunked")
    for impl in implementations:
        loss = attention_loss(student, teacher, alignment, impl=impl).loss
        results.append([loss.detach()[None], *torch.autograd.grad(loss, [student.query_HTD, student.key_KSD])])
    for expected, found in zip(*results, strict=True):
        error = float((found - expected).norm() / expected.norm())
        if not error < 1e-4:
            sys.exit(f"chunked differs from the definition by {error:.1e}: no times are printed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--child", nargs=2, metavar=("IMPL", "CHUNK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        impl, chunk = arguments.child
        report(lambda: prepare(impl, int(chunk), arguments.tokens), repeats=3)
        return
    check()
    heading(
        f"Attention loss, forward + backward: {arguments.tokens} tokens, {HEADS} heads of size {HEAD_SIZE}, float32"
    )
    size = ("--tokens", str(arguments.tokens))
    plain = in_child(__file__, *size, "--child", "reference", "0")
    rows = [("plain definition", plain)]
    rows += [(f"chunked, {c} queries", in_child(__file__, *size, "--child", "chunked", str(c))) for c in (32, 128, 512)]
    table(rows, plain)


if __name__ == "__main__":
    main()
