"""Token loss on the CPU, forward and backward: the chunked version beside the plain definition.

    python benchmarks/token_loss.py [--tokens 256]

Qwen3's vocabulary of 151,936 with hidden size 256, float32, forward KL clipped per token. The two must agree to 1e-4
in loss and gradient before any time is printed. The chunked version's memory does not grow with the tokens.
"""

import argparse
import sys

import torch
from measure import Step, heading, in_child, report, table

from opasd.choices import Impl
from opasd.losses.token import WORKSPACE_BYTES, OutputHead, token_loss

VOCABULARY, HIDDEN = 151_936, 256


def inputs(tokens: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, OutputHead]:
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
    results: list[list[torch.Tensor]] = []
    implementations: tuple[Impl, ...] = ("reference", "chunked")
    for impl in implementations:
        loss = token_loss(hidden, head, teacher, head, clip="per_token", impl=impl, chunk_tokens=7).loss
        results.append([loss.detach()[None], *torch.autograd.grad(loss, [hidden])])
    for expected, found in zip(*results, strict=True):
        error = float((found - expected).norm() / expected.norm())
        if not error < 1e-4:
            sys.exit(f"chunked differs from the definition by {error:.1e}: no times are printed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--child", metavar="IMPL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        report(lambda: prepare(arguments.child, arguments.tokens), repeats=2)
        return
    check()
    heading(f"Token loss, forward + backward: {arguments.tokens} tokens, vocabulary {VOCABULARY:,}, float32")
    plain = in_child(__file__, "--tokens", str(arguments.tokens), "--child", "reference")
    rows = [("plain definition", plain)]
    for tokens in map(str, (arguments.tokens, 4 * arguments.tokens)):
        rows += [(f"chunked, {tokens} tokens", in_child(__file__, "--tokens", tokens, "--child", "chunked"))]
    table(rows, plain)
    print(f"\nstated bound of the chunked version's workspace: {WORKSPACE_BYTES / 2**20:.0f} MiB at any length")


if __name__ == "__main__":
    main()
