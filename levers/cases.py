"""The variants: each has a section, a group (variants of one group do the same work), a name and what makes its call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reference_impl.kernels import registry
from reference_impl.kernels.rope import naive as rope_naive

HEADS, KV_HEADS, D, H, I, V = 12, 2, 128, 1536, 8960, 151936
SCALE = 1 / math.sqrt(D)


@dataclass(frozen=True)
class Variant:
    section: str
    group: str
    name: str
    make: Callable[[], tuple[Callable[[], Any], Callable[[], list[Tensor]]]]  # -> the call, and its results after it
    flops: float = 0.0


def bf16(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale


def descriptor(tensor: Tensor, *block: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(block))


# ---------------------------------------------------------------- attention


@cache
def attention_inputs(batch: int, s: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    t = batch * s
    module = registry.load("attention")
    qkv, grad = bf16(t, (HEADS + 2 * KV_HEADS) * D), bf16(t, HEADS * D)
    cos, sin = rope_naive.tables(s, D, 1e6, torch.device("cuda"))
    sizes = (batch, s, HEADS, KV_HEADS, D)
    out, lse = module.forward(qkv, *sizes)
    delta = torch.empty_like(lse)
    registry.launch(module.delta_spec(batch, s, HEADS, D, "bf16"), grad, out, delta)
    reference = module.backward(grad, qkv, out, lse, cos, sin, *sizes)
    return {"qkv": qkv, "grad": grad, "cos": cos, "sin": sin, "out": out, "lse": lse, "delta": delta, "ref": reference}


def heads_of(qkv: Tensor, batch: int, s: int) -> list[Tensor]:
    parts = torch.split(qkv.view(batch, s, -1, D).transpose(1, 2), [HEADS, KV_HEADS, KV_HEADS], dim=1)
    return [part.detach().requires_grad_() for part in parts]


def attention_variants() -> list[Variant]:
    from levers import attention as kernels

    found: list[Variant] = []
    shapes = [(4, 2048), (4, 512), (1, 8192), (4, 128)]
    for batch, s in shapes:
        causal = 2 * batch * HEADS * s * s * D / 2
        sizes = (batch, s, HEADS, KV_HEADS, D)
        constants = {"S": s, "HEADS": HEADS, "KV_HEADS": KV_HEADS, "D": D, "SCALE": SCALE}
        label = f"{batch}x{s}"

        def add(group: str, name: str, make: Any, products: int) -> None:
            found.append(Variant("attention", f"{group} {label}", name, make, products * causal))

        def today_forward(batch: int = batch, s: int = s, sizes: Any = sizes) -> Any:
            data = attention_inputs(batch, s)
            kept: list[Tensor] = []

            def call() -> None:
                kept[:] = registry.load("attention").forward(data["qkv"], *sizes)

            return call, lambda: kept

        add("forward", "today", today_forward, 2)

        def library(backend: SDPBackend, *, backward: bool, batch: int = batch, s: int = s) -> Any:
            def make() -> Any:
                data = attention_inputs(batch, s)
                query, key, value = heads_of(data["qkv"], batch, s)
                kept: list[Tensor] = []

                def forward() -> Tensor:
                    with sdpa_kernel(backend):
                        return torch.nn.functional.scaled_dot_product_attention(
                            query, key, value, is_causal=True, enable_gqa=True
                        )

                if not backward:

                    def call() -> None:
                        kept[:] = [forward().transpose(1, 2).reshape(batch * s, -1)]

                    return call, lambda: kept
                grad = data["grad"].view(batch, s, HEADS, D).transpose(1, 2)

                def back() -> None:
                    # Forward and backward: autograd runs a backward on the stream of its forward, here that captured.
                    kept[:] = torch.autograd.grad(forward(), (query, key, value), grad)

                return back, lambda: kept

            return make

        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            add("forward", f"library {backend.name}", library(backend, backward=False), 2)
            add("library both", f"library {backend.name}", library(backend, backward=True), 7)

        def forward_case(bm: int, bn: int, warps: int, stages: int, *, tma: bool, ws: bool, c: Any = constants) -> Any:
            def make(batch: int = batch, s: int = s) -> Any:
                data = attention_inputs(batch, s)
                out, lse = torch.empty_like(data["out"]), torch.empty_like(data["lse"])
                qkv = data["qkv"]
                query = descriptor(qkv, bm, D) if tma else qkv
                packed = descriptor(qkv, bn, D) if tma else qkv

                def call() -> None:
                    kernels.forward_kernel[(batch * HEADS, s // bm)](
                        query, packed, out, lse, **c, BM=bm, BN=bn, TMA=tma, WS=ws, num_warps=warps, num_stages=stages
                    )

                return call, lambda: [out, lse]

            return make

        plain = [(64, 64, 4, 3), (64, 64, 4, 4), (64, 32, 4, 4)]
        for shape in plain:
            add("forward", f"split {shape}", forward_case(*shape, tma=False, ws=False), 2)
        for shape in [(64, 64, 4, 3), (64, 64, 4, 4), (64, 32, 4, 4), (128, 64, 8, 4), (64, 128, 4, 2), (64, 32, 4, 5)]:
            add("forward", f"tma {shape}", forward_case(*shape, tma=True, ws=False), 2)

        def today_backward(batch: int = batch, s: int = s, sizes: Any = sizes) -> Any:
            data = attention_inputs(batch, s)
            kept: list[Tensor] = []

            def call() -> None:
                kept[:] = [
                    registry.load("attention").backward(
                        data["grad"], data["qkv"], data["out"], data["lse"], data["cos"], data["sin"], *sizes
                    )
                ]

            return call, lambda: kept

        add("backward", "today", today_backward, 5)

        def backward_case(how: str, kv: Any, q: Any, tma: bool, batch: int = batch, s: int = s, c: Any = constants) -> Any:
            """The whole backward: delta, dK and dV by `kv` (BQ, BK, warps, stages), dQ by `q` (BM, BN, …), reduction.

            `how` "only kv", "only q", "only kept", "only from kept": that kernel alone.
            """

            def make() -> Any:
                data = attention_inputs(batch, s)
                module = registry.load("attention")
                grad_qkv, grad_key = torch.empty_like(data["qkv"]), torch.empty_like(data["out"])
                grad_value = torch.empty_like(grad_key)
                for tensor in (grad_qkv, grad_key, grad_value):
                    tensor.fill_(float("nan"))
                delta = torch.empty_like(data["lse"])
                delta.copy_(data["delta"])
                bq, bk, kv_warps, kv_stages = kv
                bm, bn, q_warps, q_stages = q
                keep = "kept" in how
                kept = torch.zeros(batch * HEADS * s * s, device="cuda", dtype=torch.bfloat16) if keep else grad_key
                delta_spec = module.delta_spec(batch, s, HEADS, D, "bf16")
                reduce_spec = module.reduce_spec(batch, s, HEADS, KV_HEADS, D, "bf16")
                saved = (data["qkv"], data["lse"], delta)
                grid = batch * HEADS
                qkv, grad = data["qkv"], data["grad"]
                query_ref, grad_ref = (descriptor(qkv, bq, D), descriptor(grad, bq, D)) if tma else (qkv, grad)
                key_ref = descriptor(qkv, bn, D) if tma else qkv
                kept_ref = descriptor(kept.view(-1, bm), bn, bm) if tma and keep else kept

                def call() -> None:
                    if "only" not in how:
                        registry.launch(delta_spec, data["grad"], data["out"], delta)
                    if how == "both":
                        kernels.both_kernel[(grid, 2 * (s // bm))](
                            query_ref, grad_ref, grad, *saved, data["cos"], data["sin"], grad_qkv, grad_key, grad_value,
                            **c, BM=bm, BN=bn, BK=bk, BQ=bq, TMA=tma, num_warps=kv_warps, num_stages=kv_stages,
                        )  # fmt: skip
                    elif how not in ("only q", "only from kept"):
                        kernels.key_value_kernel[(grid, s // bk)](
                            query_ref, grad_ref, *saved, grad_key, grad_value, kept, **c, BQ=bq, BK=bk,
                            KEEP=s if keep else 0, TMA=tma, num_warps=kv_warps, num_stages=kv_stages,
                        )  # fmt: skip
                    if how in ("kept", "only from kept"):
                        kernels.query_from_kept_kernel[(grid, s // bm)](
                            key_ref, kept_ref, qkv, kept, data["cos"], data["sin"], grad_qkv, **c, BM=bm, BN=bn,
                            TMA=tma, num_warps=q_warps, num_stages=q_stages,
                        )  # fmt: skip
                    elif how in ("two", "only q"):
                        kernels.query_kernel[(grid, s // bm)](
                            key_ref, grad, *saved, data["cos"], data["sin"], grad_qkv, **c, BM=bm, BN=bn, TMA=tma,
                            num_warps=q_warps, num_stages=q_stages,
                        )  # fmt: skip
                    if "only" not in how:
                        registry.launch(reduce_spec, grad_key, grad_value, data["cos"], data["sin"], grad_qkv)

                return call, lambda: [grad_qkv]

            return make

        none = (64, 64, 4, 2)
        for tma in (False, True):
            mark = " tma" if tma else ""
            for kv in [
                (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 8, 2), (64, 128, 8, 3), (32, 128, 8, 3), (32, 64, 4, 3),
                (128, 64, 8, 2), (32, 64, 4, 4),
            ]:  # fmt: skip
                add("dK and dV", f"kv{kv}{mark}", backward_case("only kv", kv, none, tma), 4)
            for q in [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (64, 32, 4, 3), (128, 128, 8, 2)]:
                add("dQ", f"q{q}{mark}", backward_case("only q", none, q, tma), 3)
            for kv in [(64, 64, 4, 2), (64, 128, 8, 2)]:
                add("dK, dV and dS", f"kv{kv}{mark}", backward_case("only kept", kv, none, tma), 4)
            for q in [(64, 64, 4, 3), (64, 128, 4, 2), (64, 128, 4, 3), (64, 64, 4, 4)]:
                add("dQ from dS", f"q{q}{mark}", backward_case("only from kept", (64, q[1], 4, 2), q, tma), 1)
            for kv, q in [
                ((64, 64, 4, 2), (64, 64, 4, 2)), ((64, 64, 4, 2), (64, 64, 4, 3)), ((64, 128, 8, 2), (128, 64, 8, 2)),
                ((64, 128, 8, 2), (64, 64, 4, 3)),
            ]:  # fmt: skip
                add("backward", f"two kv{kv} q{q}{mark}", backward_case("two", kv, q, tma), 5)
            for kv, q in [((64, 64, 4, 2), (64, 64, 4, 2)), ((64, 128, 8, 2), (128, 64, 8, 2))]:
                add("backward", f"both kv{kv} q{q}{mark}", backward_case("both", kv, q, tma), 5)
            for kv, q in [((64, 64, 4, 2), (64, 64, 4, 3)), ((64, 128, 8, 2), (64, 128, 4, 3))]:
                add("backward", f"kept kv{kv} q{q}{mark}", backward_case("kept", kv, q, tma), 5)

        def helper(which: str, batch: int = batch, s: int = s) -> Any:
            def make() -> Any:
                data, module = attention_inputs(batch, s), registry.load("attention")
                delta, grad_qkv = torch.empty_like(data["lse"]), torch.empty_like(data["qkv"])
                key, value = torch.empty_like(data["out"]), torch.empty_like(data["out"])
                if which == "delta":
                    spec = module.delta_spec(batch, s, HEADS, D, "bf16")
                    return lambda: registry.launch(spec, data["grad"], data["out"], delta), lambda: [delta]
                spec = module.reduce_spec(batch, s, HEADS, KV_HEADS, D, "bf16")
                key.copy_(data["out"])
                value.copy_(data["grad"])
                grad_qkv.zero_()
                return (
                    lambda: registry.launch(spec, key, value, data["cos"], data["sin"], grad_qkv),
                    lambda: [grad_qkv],
                )

            return make

        add("helper delta", "today", helper("delta"), 0)
        add("helper reduce", "today", helper("reduce"), 0)
    return found


# ---------------------------------------------------------------- products


@cache
def product_inputs(t: int) -> dict[str, Tensor]:
    torch.manual_seed(2)
    return {
        "x": bf16(t, H),
        "gate_up": bf16(2 * I, H, scale=0.02),
        "down": bf16(H, I, scale=0.02),
        "middle": bf16(t, 2 * I),
        "grad": bf16(t, H),
    }


def _tiles(mode: int) -> list[tuple[Any, ...]]:
    """(kind, BM, BN, BK, warps, stages, store by TMA) — kind: pointers, tma, flat."""
    if mode == 5:
        return [
            ("tma", 128, 128, 64, 8, 3, False), ("tma", 128, 128, 64, 8, 3, True), ("tma", 128, 128, 64, 4, 3, False),
            ("tma", 128, 128, 64, 4, 3, True), ("flat", 128, 256, 64, 8, 3, False), ("flat", 128, 256, 64, 8, 3, True),
            ("flat", 128, 256, 64, 8, 4, True), ("flat", 256, 128, 64, 8, 3, True), ("tma", 128, 256, 64, 8, 4, True),
            ("tma", 128, 128, 128, 8, 2, True), ("pointers", 128, 128, 64, 8, 3, False),
        ]  # fmt: skip
    if mode == 3:
        return [
            ("tma", 128, 128, 64, 8, 3, False), ("tma", 128, 128, 64, 8, 3, True), ("tma", 128, 128, 64, 8, 2, True),
            ("tma", 128, 64, 64, 4, 4, False), ("tma", 128, 64, 64, 4, 3, True), ("tma", 128, 128, 32, 8, 5, True),
            ("tma", 128, 64, 64, 8, 3, True), ("tma", 128, 256, 64, 8, 3, True), ("flat", 128, 128, 64, 8, 3, True),
            ("flat", 128, 256, 64, 8, 3, True), ("tma", 64, 128, 64, 4, 4, True), ("tma", 128, 128, 64, 4, 3, True),
        ]  # fmt: skip
    return [
        ("tma", 128, 128, 64, 8, 3, False), ("tma", 128, 128, 64, 8, 3, True), ("flat", 128, 256, 64, 8, 3, False),
        ("flat", 128, 256, 64, 8, 3, True), ("tma", 128, 256, 64, 8, 3, True),
    ]  # fmt: skip


def product_variants() -> list[Variant]:
    from levers import gemm as kernels

    found: list[Variant] = []
    for t in (8192, 2048, 512):
        operations = {5: 2.0 * t * H * 2 * I, 2: 2.0 * t * H * I, 1: 2.0 * t * H * 2 * I, 3: 2.0 * t * H * I, 0: 2.0 * t * H * 2 * I}

        def case(mode: int, tile: Any, t: int = t) -> Any:
            kind, bm, bn, bk, warps, stages, store = tile

            def make() -> Any:
                data = product_inputs(t)
                swiglu = registry.load("swiglu")
                n = 2 * I if mode in (0, 5) else I
                a, w = (data["grad"], data["down"]) if mode in (2, 3) else (data["x"], data["gate_up"])
                out = torch.full((t, I if mode == 2 else 2 * I), float("nan"), device="cuda", dtype=torch.bfloat16)
                act = torch.full((t, I), float("nan"), device="cuda", dtype=torch.bfloat16)
                extra = data["middle"] if mode == 3 else act
                kept: list[Tensor] = [out, act] if mode == 5 else [out]
                if kind == "cublas":

                    def today() -> None:
                        if mode == 5:
                            torch.mm(a, w.t(), out=out)
                            kept[1] = swiglu.forward(out)
                        elif mode == 3:
                            torch.mm(a, w, out=act)
                            swiglu.backward(act, data["middle"], out)
                        elif mode == 2:
                            torch.mm(a, w, out=out)
                        else:
                            torch.mm(a, w.t(), out=out)

                    return today, lambda: kept
                if kind == "cublas alone":

                    def alone() -> None:
                        torch.mm(a, w if mode == 3 else w.t(), out=act if mode == 3 else out)

                    return alone, lambda: [act if mode == 3 else out]
                tma = kind != "pointers"
                if mode == 5:  # blocks of rows, gate and up in turns
                    half = bn // 2
                    w = w.view(2, I // half, half, H).transpose(0, 1).reshape(2 * I, H).contiguous()
                left, right, target, third = a, w, out, extra
                if tma:
                    left = descriptor(a, bm, bk)
                    right = descriptor(w, bk, bn) if mode in (2, 3) else descriptor(w, bn, bk)
                if store:
                    wide = bn // 2 if mode == 5 else bn
                    target, third = descriptor(out, bm, wide), descriptor(extra, bm, wide)
                sizes = {"M": t, "N": n, "K": H, "BM": bm, "BN": bn, "BK": bk, "GROUP": 8, "MODE": mode}
                options = {"num_warps": warps, "num_stages": stages}
                tiles = (t // bm) * (n // bn)
                programs = torch.cuda.get_device_properties(0).multi_processor_count

                def call() -> None:
                    if kind in ("pointers", "tma"):
                        kernels.product_kernel[(tiles,)](
                            left, right, target, third, third, **sizes, TMA=tma, STORE_TMA=store, **options
                        )
                    else:
                        kernels.persistent_kernel[(min(programs, tiles),)](
                            left, right, target, third, third, **sizes, TMA=tma, STORE_TMA=store, PROGRAMS=programs,
                            FLATTEN=kind == "flat", WS=kind == "specialized", **options,
                        )  # fmt: skip

                return call, lambda: kept

            return make

        names = {5: "gate-up and SwiGLU", 3: "down's gradient and SwiGLU's", 0: "gate-up alone", 2: "down's gradient"}
        for mode in (5, 3, 0, 2):
            group = f"{names[mode]} T={t}"
            found.append(Variant("products", group, "today", case(mode, ("cublas", *[0] * 6)), operations[mode]))
            if mode in (3, 5):
                alone = case(mode, ("cublas alone", *[0] * 6))
                found.append(Variant("products", f"{group} (product alone)", "cublas", alone, operations[mode]))
            for tile in _tiles(mode):
                label = " ".join(map(str, tile))
                found.append(Variant("products", group, label, case(mode, tile), operations[mode]))
    return found


# ---------------------------------------------------------------- rows


@cache
def head_inputs() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {
        "x": bf16(512, H),
        "head": bf16(V, H, scale=0.02),
        "targets": torch.randint(0, V, (512,), device="cuda"),
        "scale": torch.tensor(1 / 512, device="cuda"),
    }


@cache
def norm_inputs(t: int) -> dict[str, Tensor]:
    torch.manual_seed(4)
    return {
        "y": bf16(t, H), "x": bf16(t, H), "residual": bf16(t, H), "low": bf16(t, 32), "factor": bf16(32, H, scale=0.1),
        "gain": torch.rand(H, device="cuda") + 0.5, "rstd": torch.rand(t, device="cuda") + 0.5,
    }  # fmt: skip


def row_variants() -> list[Variant]:
    from levers import gemm, rows

    found: list[Variant] = []
    module = registry.load("cross_entropy")

    def head_case(how: str, tile: Any = None) -> Any:
        def make() -> Any:
            data = head_inputs()
            logits = torch.empty(512, V, device="cuda", dtype=torch.bfloat16)
            losses = torch.empty(512, device="cuda")
            spec = module.forward_backward_spec(512, V, "bf16")
            if how.startswith("loss"):
                warps = int(how.split()[1])
                vectors = {**spec.constexprs, "VECTORS": warps * 64 * int(how.split()[2])}
                spec = replace(spec, num_warps=warps, constexprs=vectors)
            if how != "known":

                def call() -> None:
                    torch.mm(data["x"], data["head"].t(), out=logits)
                    registry.jit_launch(spec, (logits, data["targets"], data["scale"], losses))

                def product() -> None:
                    torch.mm(data["x"], data["head"].t(), out=logits)

                return (product, lambda: [logits]) if how == "product" else (call, lambda: [losses, logits])
            bm, bn, bk, warps, stages, kind, second_warps, block = tile
            parts = V // bn
            maxima = torch.empty(parts, 512, device="cuda")
            sums = torch.empty_like(maxima)
            left, right = descriptor(data["x"], bm, bk), descriptor(data["head"], bn, bk)
            sizes = {"M": 512, "N": V, "K": H, "BM": bm, "BN": bn, "BK": bk, "GROUP": 8, "MODE": 4}
            tiles = (512 // bm) * parts
            programs = torch.cuda.get_device_properties(0).multi_processor_count

            def known() -> None:
                if kind == "tma":
                    gemm.product_kernel[(tiles,)](
                        left, right, logits, maxima, sums, **sizes, TMA=True, STORE_TMA=False, num_warps=warps,
                        num_stages=stages,
                    )  # fmt: skip
                else:
                    gemm.persistent_kernel[(programs,)](
                        left, right, logits, maxima, sums, **sizes, TMA=True, STORE_TMA=False, PROGRAMS=programs,
                        FLATTEN=kind == "flat", WS=kind == "specialized", num_warps=warps, num_stages=stages,
                    )  # fmt: skip
                rows.loss_known_kernel[(512,)](
                    logits, data["targets"], data["scale"], maxima, sums, losses, M=512, V=V, PARTS=parts,
                    PARTS_BLOCK=2048, BLOCK=block, num_warps=second_warps,
                )  # fmt: skip

            return known, lambda: [losses, logits]

        return make

    work = 2.0 * 512 * V * H
    found.append(Variant("rows", "head and loss", "today", head_case("today"), work))
    found.append(Variant("rows", "head alone", "cublas", head_case("product"), work))
    for warps, each in [(8, 1), (16, 1), (16, 2), (32, 1)]:
        found.append(Variant("rows", "head and loss", f"loss w{warps} x{each}", head_case(f"loss {warps} {each}"), work))
    for tile in [
        (128, 128, 64, 8, 3, "tma", 16, 8192), (128, 128, 64, 8, 3, "tma", 32, 16384),
    ]:  # fmt: skip
        found.append(Variant("rows", "head and loss", f"known {tile}", head_case("known", tile), work))

    norm = registry.load("rms_norm")

    def forward_case(t: int, warps: int | None) -> Any:
        def make() -> Any:
            data = norm_inputs(t)
            spec = norm.add_forward_spec(t, H, 1e-6, "bf16")
            spec = spec if warps is None else replace(spec, num_warps=warps)
            total, y = torch.empty_like(data["x"]), torch.empty_like(data["x"])
            rstd = torch.empty_like(data["rstd"])
            arguments = (data["x"], data["residual"], data["gain"], total, y, rstd)
            return lambda: registry.jit_launch(spec, arguments), lambda: [total, y, rstd]

        return make

    def backward_case(t: int, count: int | None, warps: int | None, *, low: str) -> Any:
        def make() -> Any:
            data = norm_inputs(t)
            spec = norm.backward_spec(t, H, "bf16", add_residual=True)
            if count is not None:
                spec = replace(spec, constexprs={**spec.constexprs, "ROWS": count}, grid=(t // count,))
            spec = spec if warps is None else replace(spec, num_warps=warps)
            grad = torch.empty_like(data["x"])
            partials = torch.empty(t, H, device="cuda")
            gains = torch.empty(H, device="cuda")
            y = torch.empty_like(data["y"])
            p = 16 if low == "fused" else spec.constexprs["ROWS"]
            reduce = norm._reduce_gain_spec(1, t // p, H)

            def call() -> None:
                if low == "fused":
                    rows.norm_backward_low_rank_kernel[(t // 16,)](
                        data["y"], data["low"], data["factor"], data["x"], data["gain"], data["rstd"],
                        data["residual"], grad, partials, T=t, H=H, R=32, ROWS=16, CHUNK=count, num_warps=warps,
                    )  # fmt: skip
                else:
                    if low == "added":
                        torch.addmm(data["y"], data["low"], data["factor"], out=y)
                    source = y if low == "added" else data["y"]
                    arguments = (source, data["x"], data["gain"], data["rstd"], data["residual"], grad, partials)
                    registry.jit_launch(spec, arguments)
                registry.jit_launch(reduce, (partials, gains))

            return call, lambda: [grad, gains]

        return make

    for t in (8192, 2048, 512):
        found.append(Variant("rows", f"add and norm T={t}", "today", forward_case(t, None)))
        for warps in (2, 8):
            found.append(Variant("rows", f"add and norm T={t}", f"w{warps}", forward_case(t, warps)))
        found.append(Variant("rows", f"norm backward T={t}", "today", backward_case(t, None, None, low="")))
        for count, warps in [(8, 4), (8, 8)]:
            case = backward_case(t, count, warps, low="")
            found.append(Variant("rows", f"norm backward T={t}", f"rows {count} w{warps}", case))
        found.append(Variant("rows", f"low rank and norm T={t}", "today", backward_case(t, None, None, low="added")))
        for chunk, warps in [(512, 8), (512, 16), (256, 8)]:
            case = backward_case(t, chunk, warps, low="fused")
            found.append(Variant("rows", f"low rank and norm T={t}", f"fused {chunk} w{warps}", case))
    return found


def _wanted(variant: Variant) -> bool:
    """All at the largest step; a few at the others."""
    name, group = variant.name, variant.group
    if name.startswith("library") and "both" in group:
        return False
    if "T=8192" in group or "4x2048" in group or "head" in group:
        return True
    if variant.section == "products":
        return name in ("today", "cublas") or "128 128 64 8 3" in name
    if "1x8192" in group:
        return False
    if variant.section == "attention":
        return name in ("today",) or "library CUDNN" in name or "tma" in name and "(64, 64, 4" in name and "128" not in name
    return name in ("today", "fused 512 w8", "w2", "w8")


def variants() -> list[Variant]:
    # The products' few first: they decide most.
    found = [*product_variants(), *attention_variants(), *row_variants()]
    return [v for v in found if _wanted(v)]
