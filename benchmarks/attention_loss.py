"""Attention loss, forward and backward.

    python benchmarks/attention_loss.py [--tokens 2048]                                  on a CPU
    python benchmarks/attention_loss.py --device cuda [--json FILE] [--heads 16 32] [--tokens 1024 4096 8192]

On the CPU: Qwen3-like, 16 query heads, 8 key heads of size 128, float32, prompt 256, solution 512; the chunked version
beside the plain definition. On a GPU: bfloat16, prompt 256, solution 1,024; the kernels (also launched by Triton
itself) beside one layer of scaled-dot-product attention (causal, forward + backward, same heads and keys), the naive
computation in bfloat16, the chunked version and torch.compile of the naive one, medians of CUDA events; the ratio is
to the faster of two kernels for the layer. Implementations must agree before any time is printed; the kernels must
also be no further from float64 than the naive computation is.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from measure import Step, gpu_heading, heading, in_child, report, save, table
from measure import on_gpu as timed
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from opasd.choices import Impl
from opasd.losses.attention import LayerAttention, LayerBatch, attention_loss, attention_losses
from opasd.losses.divergence import divergence
from opasd.prompts.alignment import Alignment

HEADS, KEY_HEADS, HEAD_SIZE = 16, 8, 128
PROMPT, SOLUTION, GPU_SOLUTION = 256, 512, 1024
SEED = 0


def make_alignment(tokens: int, solution: int) -> Alignment:
    prompt = torch.arange(PROMPT)
    response = torch.arange(tokens)
    return Alignment(
        student_shared=torch.cat([prompt, PROMPT + response]),
        teacher_shared=torch.cat([prompt, PROMPT + solution + response]),
        in_prompt=torch.arange(PROMPT + tokens) < PROMPT,
        solution=torch.arange(PROMPT, PROMPT + solution),
        student_query=PROMPT - 1 + response,
        teacher_query=PROMPT + solution - 1 + response,
        student_length=PROMPT + tokens,
        teacher_length=PROMPT + solution + tokens,
    )


# ------------------------------------------------------------------------------------------------------------- CPU


def inputs(tokens: int) -> tuple[LayerAttention, LayerAttention, Alignment]:
    torch.manual_seed(SEED)
    alignment = make_alignment(tokens, SOLUTION)

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
        if not relative_error(found, expected) < 1e-4:
            sys.exit(f"chunked differs from the definition by {relative_error(found, expected):.1e}: no times printed")


def on_cpu(tokens: int) -> None:
    check()
    heading(f"Attention loss, forward + backward: {tokens} tokens, {HEADS} heads of size {HEAD_SIZE}, float32")
    size = ("--tokens", str(tokens))
    plain = in_child(__file__, *size, "--child", "reference", "0")
    rows = [("plain definition", plain)]
    rows += [(f"chunked, {c} queries", in_child(__file__, *size, "--child", "chunked", str(c))) for c in (32, 128, 512)]
    table(rows, plain)


# ------------------------------------------------------------------------------------------------------------- GPU


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    error = float((found.double() - expected.double()).norm() / expected.double().norm())
    return error if error == error else float("inf")


def gpu_inputs(heads: int, tokens: int, dtype: torch.dtype) -> tuple[LayerBatch, LayerBatch, Alignment]:
    """As a model leaves them: positions before heads in memory; a teacher near the student, a first key that draws."""
    generator = torch.Generator("cuda").manual_seed(SEED)
    alignment = make_alignment(tokens, GPU_SOLUTION)

    def draw(length: int, num_heads: int) -> torch.Tensor:
        return torch.randn(length, num_heads, HEAD_SIZE, generator=generator, device="cuda") * 1.3

    query, key = draw(alignment.student_length, heads), draw(alignment.student_length, KEY_HEADS)
    drawn = draw(1, KEY_HEADS) / 1.3
    query += 0.6 * drawn.repeat_interleave(heads // KEY_HEADS, 1)
    key[:1] += 4 * drawn
    other_query, other_key = draw(alignment.teacher_length, heads), draw(alignment.teacher_length, KEY_HEADS)
    mine, theirs = alignment.student_shared.cuda(), alignment.teacher_shared.cuda()
    other_query[theirs] = 0.9 * query[mine] + 0.2 * other_query[theirs]
    other_key[theirs] = 0.95 * key[mine] + 0.15 * other_key[theirs]

    def layer(query: torch.Tensor, key: torch.Tensor, grad: bool) -> LayerBatch:
        query, key = (x.to(dtype)[None].transpose(1, 2).requires_grad_(grad) for x in (query, key))
        return LayerBatch(query, key, ((0, 0, query.shape[2]),), HEAD_SIZE**-0.5)

    return layer(query, key, True), layer(other_query, other_key, False), alignment


def naive_rows(layer: LayerBatch, positions: torch.Tensor) -> torch.Tensor:
    """What `output_attentions` gives, averaged over heads: bfloat16 with a float32 softmax."""
    group = layer.query_BHND.shape[1] // layer.key_BKND.shape[1]
    key = layer.key_BKND[0].repeat_interleave(group, 0)
    score = (layer.query_BHND[0, :, positions] @ key.transpose(1, 2)) * layer.scaling
    unseen = torch.arange(key.shape[1], device=key.device) > positions[:, None]
    return score.masked_fill(unseen, -torch.inf).softmax(-1, dtype=torch.float32).to(key.dtype).mean(0)


def naive_loss(student: LayerBatch, teacher: LayerBatch, alignment: Alignment) -> torch.Tensor:
    """The definition as one would write it; no chunks, no care for precision."""
    mine = naive_rows(student, alignment.student_query)[:, alignment.student_shared]
    with torch.no_grad():
        theirs = naive_rows(teacher, alignment.teacher_query)[:, alignment.teacher_shared]
    mine, theirs = (x.float() / x.float().sum(-1, keepdim=True) for x in (mine, theirs))
    return divergence(theirs, mine, "jsd").mean()


def gradients(loss: torch.Tensor, layer: LayerBatch) -> list[torch.Tensor]:
    return [loss.detach()[None], *torch.autograd.grad(loss, [layer.query_BHND, layer.key_BKND])]


def gpu_check(heads: int) -> dict[str, list[float]]:
    """Relative errors of loss, dq and dk against float64, of the kernels and of the naive computation."""
    student, teacher, alignment = gpu_inputs(heads, 700, torch.bfloat16)

    def exact(layer: LayerBatch) -> LayerBatch:
        query, key = (x.detach().double().requires_grad_() for x in (layer.query_BHND, layer.key_BKND))
        return LayerBatch(query, key, layer.spans, layer.scaling)

    student_64 = exact(student)
    truth = gradients(
        attention_losses(student_64, exact(teacher), [alignment], impl="reference").loss, student_64
    )  # fmt: skip
    found = {
        "fused": gradients(attention_losses(student, teacher, [alignment], impl="fused").loss, student),
        "chunked": gradients(attention_losses(student, teacher, [alignment], impl="chunked").loss, student),
        "naive": gradients(naive_loss(student, teacher, alignment.to("cuda")), student),
    }
    errors = {name: [relative_error(a, b) for a, b in zip(mine, truth, strict=True)] for name, mine in found.items()}
    if not all(mine <= naive for mine, naive in zip(errors["fused"], errors["naive"], strict=True)):
        sys.exit(f"further from float64 than the naive computation: no times printed\n{json.dumps(errors, indent=1)}")
    again = gradients(attention_losses(student, teacher, [alignment], impl="fused").loss, student)
    if not all(torch.equal(a, b) for a, b in zip(again, found["fused"], strict=True)):
        sys.exit("two runs of the kernels differ: no times printed")
    return errors


def sdpa_layer(heads: int, length: int, backend: SDPBackend) -> Callable[[], object]:
    shapes = (heads, KEY_HEADS, KEY_HEADS)
    query, key, value = (
        torch.randn(1, length, h, HEAD_SIZE, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
        for h in shapes
    )
    upstream = torch.randn_like(query)

    def step() -> object:
        with sdpa_kernel(backend):
            output = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return torch.autograd.grad(output, [query, key, value], upstream)

    return step


def with_tritons_launch(step: Callable[[], object]) -> Callable[[], object]:
    """The same by Triton's own way from a kernel and its arguments to a launch."""
    from opasd.losses.fused import attention as kernels

    def plain(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        kernel[grid](*arguments, **constants)

    def slower() -> object:
        ours = kernels.launch
        kernels.launch = plain
        try:
            return step()
        finally:
            kernels.launch = ours

    return slower


def on_cuda(heads_list: list[int], tokens_list: list[int], compiled: list[int], path: str | None) -> None:
    title = "Attention loss, forward + backward, bfloat16, JSD, prompt 256, solution 1,024, 8 key heads of size 128"
    found = gpu_heading(title, SEED)
    errors: dict[int, dict[str, list[float]]] = {}
    rows: list[dict[str, Any]] = []
    for heads in heads_list:
        errors[heads] = gpu_check(heads)
        shown = "; ".join(f"{name} " + " ".join(f"{x:.1e}" for x in e) for name, e in errors[heads].items())
        print(f"\n{heads} heads: relative errors of loss, dq, dk against float64: {shown}; repeats bit by bit")
        print(f"{'':30s}{'ms':>9s}{'× layer':>9s}{'MiB':>9s}")
        for tokens in tokens_list:
            student, teacher, alignment = gpu_inputs(heads, tokens, torch.bfloat16)
            on_device = alignment.to("cuda")
            length = alignment.student_length

            def loss(
                impl: Impl, student: LayerBatch = student, teacher: LayerBatch = teacher, alignment=alignment
            ) -> Callable[[], object]:
                return lambda: gradients(attention_losses(student, teacher, [alignment], impl=impl).loss, student)

            def naive(function=naive_loss, student=student, teacher=teacher, on_device=on_device) -> object:
                return gradients(function(student, teacher, on_device), student)

            steps: dict[str, Callable[[], object]] = {
                "attention layer, flash": sdpa_layer(heads, length, SDPBackend.FLASH_ATTENTION),
                "attention layer, cuDNN": sdpa_layer(heads, length, SDPBackend.CUDNN_ATTENTION),
                "fused": loss("fused"),
                "fused, Triton's launch": with_tritons_launch(loss("fused")),
                "chunked": loss("chunked"),
                "naive": naive,
            }
            if tokens in compiled:
                function = torch.compile(naive_loss)
                steps["naive, torch.compile"] = lambda function=function, naive=naive: naive(function)
            baseline = math.inf
            for name, step in steps.items():
                try:
                    taken = timed(step)
                except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
                    print(f"{tokens:6d} {name:23s} {type(error).__name__}: {str(error).splitlines()[0][:60]}")
                    continue
                if name.startswith("attention layer"):
                    baseline = min(baseline, taken["seconds"])
                rows.append({"heads": heads, "tokens": tokens, "name": name, **taken})
                ratio = taken["seconds"] / baseline  # of the faster layer, once both are known
                shown = f"{1e3 * taken['seconds']:9.3f}{ratio:9.2f}{taken['bytes'] / 2**20:9.0f}"
                print(f"{tokens:6d} {name:23s}{shown}", flush=True)
            del student, teacher, on_device, steps
            torch.cuda.empty_cache()
    save(path, found | {"errors": errors}, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--compile", type=int, nargs="*", default=[], help="lengths at which to run torch.compile too")
    parser.add_argument("--json", help="where to write the raw figures of a GPU")
    parser.add_argument("--child", nargs=2, metavar=("IMPL", "CHUNK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        impl, chunk = arguments.child
        report(lambda: prepare(impl, int(chunk), arguments.tokens[0]), repeats=3)
    elif arguments.device == "cuda":
        on_cuda(arguments.heads, arguments.tokens or [1024, 4096, 8192], arguments.compile, arguments.json)
    else:
        on_cpu((arguments.tokens or [2048])[0])


if __name__ == "__main__":
    main()
