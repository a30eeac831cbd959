"""Time each kernel at the shapes of Qwen2-1.5B, and compare it with the copy rate and with torch.

Run it with `python -m benchmarks.kernels`. Each case is captured into a CUDA graph of many launches, which use copies
of the tensors in turn. Together the copies are several times larger than the L2 cache, so data is read from memory. The
time of a launch is the median time of 20 replays, measured with CUDA events, divided by the number of launches. It
therefore does not include the time in which the host starts a launch. The bytes of a kernel are the smallest number
that must be moved: each input is read once, and each output is written once. The column for torch shows torch's
operator if there is one (rms_norm, attention, silu * up, @), otherwise the naive twin, captured in the same way.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reference_impl.kernels import registry
from reference_impl.kernels.clip import naive as clip_naive
from reference_impl.kernels.cross_entropy import naive as cross_entropy_naive
from reference_impl.kernels.nf4.naive import PAIRS
from reference_impl.kernels.rms_norm import naive as rms_norm_naive
from reference_impl.kernels.rope import naive as rope_naive
from reference_impl.kernels.softmax import naive as softmax_naive
from reference_impl.kernels.swiglu import naive as swiglu_naive

HIDDEN, INTERMEDIATE, VOCABULARY, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 1536, 8960, 151936, 12, 2, 128, 28
FACTORS = 32  # number of low-rank columns: rank 16 for q, and rank 16 for v
SEQ_LEN, EPS, REPLAYS = 512, 1e-6, 20
ROTATION_BYTES = 512 * 2**20
WEIGHTS = {"qkv": (2048, 1536), "o": (1536, 1536), "gate_up": (17920, 1536), "down": (1536, 8960)}

Body = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A kernel at one shape. `make` allocates tensors and returns two functions that call the kernel and torch."""

    name: str
    moved_bytes: int
    make: Callable[[], tuple[Body, Body]]


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def microseconds(bodies: list[Body]) -> float:
    """Return the median time to replay a graph of all `bodies`, divided by their number, in microseconds."""
    bodies[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Keep the results. Otherwise every launch would write to the same memory, and this memory is in the cache.
        results = [body() for body in bodies]
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(bodies))
    del results
    return float(statistics.median(times))


def copy_rate() -> float:
    """Return the rate of a device-to-device copy of 1 GiB, in bytes read and written per microsecond."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**30 / microseconds([lambda: target.copy_(source)] * 4)


def dequantize_case(name: str, rows: int, cols: int) -> Case:
    def make() -> tuple[Body, Body]:
        kernel, count = registry.load("nf4"), rows * cols
        codes = torch.randint(0, 256, (count // 2,), device="cuda", dtype=torch.uint8)
        absmax, out = (
            torch.rand(count // 64, device="cuda"),
            torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16),
        )
        pairs = PAIRS.cuda()

        def plain() -> Tensor:
            values = torch.nn.functional.embedding(codes.int(), pairs).view(-1, 64)
            return out.view(-1, 64).copy_(values * absmax[:, None])

        return lambda: kernel.dequantize(codes, absmax, rows, cols, torch.bfloat16, out), plain

    return Case(f"nf4.dequantize {name} {rows}x{cols}", rows * cols * 2 + rows * cols // 2 + rows * cols // 16, make)


def norm_cases(tokens: int) -> list[Case]:
    data = tokens * HIDDEN * 2
    kernel = registry.load("rms_norm")

    def forward() -> tuple[Body, Body]:
        x, gain = bf16(tokens, HIDDEN), torch.ones(HIDDEN, device="cuda")
        weight = gain.bfloat16()
        return lambda: kernel.forward(x, gain, EPS), lambda: torch.nn.functional.rms_norm(x, (HIDDEN,), weight, EPS)

    def add_forward() -> tuple[Body, Body]:
        x, residual, gain = bf16(tokens, HIDDEN), bf16(tokens, HIDDEN), torch.ones(HIDDEN, device="cuda")
        weight = gain.bfloat16()

        def plain() -> Tensor:
            return torch.nn.functional.rms_norm(x + residual, (HIDDEN,), weight, EPS)

        return lambda: kernel.add_forward(x, residual, gain, EPS), plain

    def backward() -> tuple[Body, Body]:
        x, grad, residual, gain = *(bf16(tokens, HIDDEN) for _ in range(3)), torch.ones(HIDDEN, device="cuda")
        rstd = kernel.forward(x, gain, EPS)[1]
        return (
            lambda: kernel.backward(grad, x, gain, rstd, residual),
            lambda: rms_norm_naive.backward(grad, x, gain, rstd, residual),
        )

    return [
        Case(f"rms_norm.forward T={tokens}", 2 * data, forward),
        Case(f"rms_norm.add_forward T={tokens}", 4 * data, add_forward),
        Case(f"rms_norm.backward (2 kernels) T={tokens}", 4 * data, backward),
    ]


def block_cases(tokens: int) -> list[Case]:
    rope, swiglu = registry.load("rope"), registry.load("swiglu")
    width, rotated = (HEADS + 2 * KV_HEADS) * HEAD_DIM, HEADS + KV_HEADS

    def rotate() -> tuple[Body, Body]:
        qkv = bf16(tokens, width)
        low_rank, b = bf16(tokens, FACTORS), bf16(width, FACTORS)
        cos, sin = rope_naive.tables(SEQ_LEN, HEAD_DIM, 1e6, torch.device("cuda"))
        arguments = (qkv, low_rank, b, cos, sin, SEQ_LEN, rotated, HEAD_DIM)
        return lambda: rope.add_rotate_(*arguments), lambda: rope_naive.add_rotate_(*arguments)

    def forward() -> tuple[Body, Body]:
        gate_up = bf16(tokens, 2 * INTERMEDIATE)
        gate, up = gate_up.chunk(2, dim=1)
        return lambda: swiglu.forward(gate_up), lambda: torch.nn.functional.silu(gate) * up

    def backward() -> tuple[Body, Body]:
        gate_up, grad = bf16(tokens, 2 * INTERMEDIATE), bf16(tokens, INTERMEDIATE)
        return lambda: swiglu.backward(grad, gate_up), lambda: swiglu_naive.backward(grad, gate_up)

    return [
        Case(f"rope.add_rotate T={tokens}", 2 * tokens * width * 2, rotate),
        Case(f"swiglu.forward T={tokens}", 3 * tokens * INTERMEDIATE * 2, forward),
        Case(f"swiglu.backward T={tokens}", 5 * tokens * INTERMEDIATE * 2, backward),
    ]


def attention_cases(seq_len: int) -> list[Case]:
    """Return the cases of attention for batch size 4.

    The column for torch shows cuDNN's attention on views of qkv. For the backward, it includes the time in which torch
    packs and rotates the gradients.
    """
    attention, rope, tokens = registry.load("attention"), registry.load("rope"), 4 * seq_len
    query_bytes, packed_bytes = tokens * HEADS * HEAD_DIM * 2, tokens * (HEADS + 2 * KV_HEADS) * HEAD_DIM * 2
    sizes = (4, seq_len, HEADS, KV_HEADS, HEAD_DIM)
    views = [HEADS, KV_HEADS, KV_HEADS]

    def heads(qkv: Tensor) -> list[Tensor]:
        parts = torch.split(qkv.view(4, seq_len, -1, HEAD_DIM).transpose(1, 2), views, dim=1)
        return [part.detach().requires_grad_() for part in parts]

    def torch_attention(parts: list[Tensor]) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            query, key, value = parts
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    def forward() -> tuple[Body, Body]:
        qkv = bf16(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        parts = heads(qkv)
        return lambda: attention.forward(qkv, *sizes), lambda: torch_attention(parts)

    def backward() -> tuple[Body, Body]:
        qkv, grad = bf16(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM), bf16(tokens, HEADS * HEAD_DIM)
        cos, sin = rope_naive.tables(seq_len, HEAD_DIM, 1e6, torch.device("cuda"))
        nothing, b = torch.zeros_like(qkv[:, :FACTORS]), bf16(qkv.shape[1], FACTORS)
        saved, parts = attention.forward(qkv, *sizes), heads(qkv)
        out = torch_attention(parts)
        grad_heads = grad.view(4, seq_len, HEADS, HEAD_DIM).transpose(1, 2)

        def plain() -> Tensor:
            grads = torch.autograd.grad(out, parts, grad_heads, retain_graph=True)
            packed = torch.cat([part.transpose(1, 2).reshape(tokens, -1) for part in grads], dim=1)
            rope.add_rotate_(packed, nothing, b, cos, -sin, seq_len, HEADS + KV_HEADS, HEAD_DIM)
            return packed

        return lambda: attention.backward(grad, qkv, *saved, cos, sin, *sizes), plain

    return [
        Case(f"attention.forward S={seq_len}", packed_bytes + query_bytes, forward),
        Case(f"attention.backward (3 kernels) S={seq_len}", 2 * packed_bytes + 2 * query_bytes, backward),
    ]


def loss_case(tokens: int) -> Case:
    kernel = registry.load("cross_entropy")

    def make() -> tuple[Body, Body]:
        logits, targets = bf16(tokens, VOCABULARY), torch.randint(0, VOCABULARY, (tokens,), device="cuda")
        scale = torch.tensor(1.0 / tokens, device="cuda")
        return (
            lambda: kernel.forward_backward_(logits, targets, scale),
            lambda: cross_entropy_naive.forward_backward_(logits, targets, scale),
        )

    return Case(f"cross_entropy T={tokens}", 2 * tokens * VOCABULARY * 2, make)


def softmax_case(rows: int, columns: int) -> Case:
    kernel = registry.load("softmax")

    def make() -> tuple[Body, Body]:
        p, grad = torch.softmax(bf16(rows, columns), dim=1), bf16(rows, columns)
        return lambda: kernel.backward(grad, p), lambda: softmax_naive.backward(grad, p)

    return Case(f"softmax.backward {rows}x{columns}", 3 * rows * columns * 2, make)


def clip_case() -> Case:
    kernel = registry.load("clip")
    # Sizes of the trained tensors of a layer: LoRA's factors of rank 16 for q and v, and the gains of both norms.
    per_layer = [16 * HIDDEN, HIDDEN * 16, 16 * HIDDEN, KV_HEADS * HEAD_DIM * 16, HIDDEN, HIDDEN]
    sizes = [(layer, size) for layer in range(LAYERS) for size in per_layer]
    total = sum(size for _, size in sizes)

    def make() -> tuple[Body, Body]:
        starts, counts, groups, offset = [], [], [], 0
        for layer, size in sizes:
            firsts = range(0, size, kernel.BLOCK)
            starts += [offset + first for first in firsts]
            counts += [min(kernel.BLOCK, size - first) for first in firsts]
            groups += [layer] * len(firsts)
            offset += size
        per_group = len(starts) // LAYERS
        start_of = torch.tensor(starts, device="cuda")
        count_of, group_of = (torch.tensor(values, device="cuda", dtype=torch.int32) for values in (counts, groups))
        group_starts = torch.arange(0, len(starts) + 1, per_group, device="cuda", dtype=torch.int32)
        flat, partials = torch.randn(total, device="cuda"), torch.empty(len(starts), device="cuda")
        norms, scales = torch.empty(LAYERS, device="cuda"), torch.empty(LAYERS, device="cuda")

        def clip(module: object) -> Body:
            def body() -> None:
                module.squared_sum_partials(flat, start_of, count_of, partials)  # type: ignore[attr-defined]
                module.clip_scale_reduce(partials, group_starts, 1.0, EPS, norms, scales)  # type: ignore[attr-defined]
                module.scale_apply_(flat, scales, start_of, count_of, group_of)  # type: ignore[attr-defined]

            return body

        return clip(kernel), clip(clip_naive)

    return Case("clip of the model (3 kernels)", 3 * total * 4, make)


def gemm_case(direction: str, m: int, k: int, n: int) -> Case:
    kernel = registry.load("gemm")

    def make() -> tuple[Body, Body]:
        a, b, grad = (torch.randn(*shape, device="cuda") for shape in ((m, k), (k, n), (m, n)))
        if direction == "a":
            return lambda: kernel.backward_a(grad, b), lambda: grad @ b.T
        return lambda: kernel.backward_b(a, grad), lambda: a.T @ grad

    return Case(f"gemm.backward_{direction} M={m} K={k} N={n}", 4 * (m * k + k * n + m * n), make)


def cases() -> list[Case]:
    return [
        *(dequantize_case(name, *shape) for name, shape in WEIGHTS.items()),
        *(case for tokens in (512, 2048) for case in (*norm_cases(tokens), *block_cases(tokens))),
        *(case for seq_len in (128, SEQ_LEN) for case in attention_cases(seq_len)),
        loss_case(512),
        softmax_case(4 * HEADS * SEQ_LEN, SEQ_LEN),
        clip_case(),
        gemm_case("a", 2048, HIDDEN, 16),
        gemm_case("b", 2048, HIDDEN, 16),
        gemm_case("a", 2048, HIDDEN, HIDDEN),
    ]


def measure(case: Case) -> tuple[float, float]:
    """Return the times of the kernel and of torch, in microseconds."""
    copies = max(2, min(64, ROTATION_BYTES // case.moved_bytes))
    pairs = [case.make() for _ in range(copies)]
    return microseconds([kernel for kernel, _ in pairs]), microseconds([plain for _, plain in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure only the cases whose name contains this text")
    only = parser.parse_args().only
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}: copy {rate / 1e6:.2f} TB/s")
    print(f"{'kernel':44} {'us':>9} {'GB/s':>8} {'of copy':>8} {'torch us':>9} {'faster':>7}")
    layer_us = 0.0
    for case in cases():
        if only not in case.name:
            continue
        kernel_us, torch_us = measure(case)
        speed = case.moved_bytes / kernel_us
        figures = (
            f"{kernel_us:9.2f} {speed / 1e3:8.0f} {speed / rate:8.1%} {torch_us:9.2f} {torch_us / kernel_us:6.1f}x"
        )
        print(f"{case.name:44} {figures}")
        if case.name.startswith("nf4"):
            layer_us += kernel_us
    if layer_us:
        print(f"nf4.dequantize of all {LAYERS} layers: {LAYERS * layer_us / 1e3:.2f} ms")


if __name__ == "__main__":
    main()
