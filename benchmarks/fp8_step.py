"""The step whose products run in FP8 beside the one in bfloat16: kernels, products, steps, bits, errors.

    python -m benchmarks.fp8_step --out results/fp8 [--model qwen2-1.5b] [--seq-lens 512 2048 128]

Sections are written as they end, each to fp8.json, which is complete when `complete` is true:

kernels     each FP8 kernel beside its twin: differing elements, and time beside the bfloat16 kernel's
products    the blocks' products, operands in FP8 already: bfloat16, row scales, tensor scales, both accumulations
steps       captured steps, interleaved with the bare bfloat16 products of `benchmarks.floor`; peaks of memory
equality    captured steps against plain ones, in bits
errors      gradients of fp8 and bfloat16 against float32 at the same parameters
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.floor import GemmFloor
from benchmarks.kernel_kinds import name_kernels_by_operation
from benchmarks.measure import environment, synchronize
from benchmarks.profile_step import record_spans, render
from reference_impl import fp8
from reference_impl.config import MODEL_PRESETS, ModelConfig, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.fp8_model import Fp8Model
from reference_impl.kernels import registry
from reference_impl.kernels.fp8_loss import naive as loss_twin
from reference_impl.kernels.fp8_nf4 import naive as nf4_twin
from reference_impl.kernels.fp8_norm import naive as norm_twin
from reference_impl.kernels.fp8_rows import naive as rows_twin
from reference_impl.kernels.fp8_swiglu import naive as swiglu_twin
from reference_impl.nf4 import quantize
from reference_impl.trainer import Trainer

BATCH = 4
ROUNDS = 4
STEPS_A_ROUND = 5
REPEATS = 20


class Results:
    """fp8.json, written anew after each section."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._path, self._began = folder, folder / "fp8.json", time.monotonic()
        self._content: dict[str, Any] = {"environment": environment(), "device": str(device), "complete": False}

    def section(self, name: str, make: Callable[[], Any]) -> None:
        try:
            found = make()
        except Exception:
            found = {"failed": traceback.format_exc()}
        self._content[name] = found
        self._write()
        print(f"{name} after {time.monotonic() - self._began:.0f} s", flush=True)

    def finish(self) -> None:
        self._content |= {"complete": True, "seconds": time.monotonic() - self._began}
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._content, indent=1, default=str) + "\n")


def time_us(call: Callable[[], object], device: torch.device) -> float:
    """Time of one of `REPEATS` calls in a graph, microseconds; the median of three replays."""
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e6
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e6 / REPEATS)
    return statistics.median(times)


def differing(found: Any, twin: Any) -> list[int]:
    """Of each pair of results, how many elements differ."""
    pairs = zip(found, twin, strict=True)
    return [int((a.float() != b.float()).sum()) for a, b in pairs if a is not None]


def kernels(config: ModelConfig, tokens: int, device: torch.device) -> dict[str, Any]:
    """Each kernel beside its twin and its bfloat16 namesake, at the model's shapes."""
    load = registry.load
    hidden, wide, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    x, other, gain = draw(tokens, hidden), draw(tokens, hidden), torch.rand(hidden, device=device) + 0.5
    gate_up, grad_act = draw(tokens, 2 * wide), draw(tokens, wide)
    codes, absmax = quantize(torch.randn(2 * wide, hidden, device=device) * 0.02)
    row, column = (torch.full((size,), 2.0**12, device=device) for size in (2 * wide, hidden))
    logits = draw(512, config.vocab_size)
    targets = torch.randint(0, config.vocab_size, (512,), device=device)
    norm, rms = load("fp8_norm"), load("rms_norm")
    rstd = rms.forward(x, gain, eps)[1]
    partials = rms.gain_partials(x, 1)[0]
    own = torch.empty(1, hidden, device=device)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any] | None]] = {
        "rows": (partial(load("fp8_rows").quantize, x), partial(rows_twin.quantize, x), None),
        "norm.forward": (
            partial(norm.add_forward, x, other, gain, eps, keep=True),
            partial(norm_twin.add_forward, x, other, gain, eps, keep=True),
            partial(rms.add_forward, x, other, gain, eps),
        ),
        "norm.backward": (
            partial(norm.backward_to_partials, other, x, gain, rstd, partials, x),
            partial(norm_twin.backward_to_partials, other, x, gain, rstd, own, x),
            partial(rms.backward_to_partials, other, x, gain, rstd, partials, x),
        ),
        "swiglu.forward": (
            partial(load("fp8_swiglu").forward, gate_up),
            partial(swiglu_twin.forward, gate_up),
            partial(load("swiglu").forward, gate_up),
        ),
        "swiglu.backward": (
            partial(load("fp8_swiglu").backward, grad_act, gate_up),
            partial(swiglu_twin.backward, grad_act, gate_up),
            partial(load("swiglu").backward, grad_act, gate_up),
        ),
        "nf4.rows": (
            lambda: [load("fp8_nf4").rows(codes, absmax, row, hidden)],
            lambda: [nf4_twin.rows(codes, absmax, row, hidden)],
            lambda: load("nf4").dequantize(codes, absmax, 2 * wide, hidden, dtype),
        ),
        "nf4.transposed": (
            lambda: [load("fp8_nf4").transposed(codes, absmax, column, 2 * wide)],
            lambda: [nf4_twin.transposed(codes, absmax, column, 2 * wide)],
            None,
        ),
        "loss": (
            partial(load("fp8_loss").forward_backward, logits, targets),
            partial(loss_twin.forward_backward, logits, targets),
            partial(load("cross_entropy").forward_backward_, logits.clone(), targets, 1.0),
        ),
    }
    return {
        name: {
            "differing": differing(kernel(), twin()),
            "elements": [part.numel() for part in kernel() if part is not None],
            "us": time_us(kernel, device),
            "bfloat16_us": None if plain is None else time_us(plain, device),
        }
        for name, (kernel, twin, plain) in pairs.items()
    }


def warps(config: ModelConfig, tokens: int, device: torch.device) -> dict[str, float]:
    """SwiGLU's FP8 kernels by the number of warps, microseconds."""
    module, found = registry.load("fp8_swiglu"), {}
    gate_up = torch.randn(tokens, 2 * config.intermediate_size, device=device).bfloat16()
    grad_act = torch.randn(tokens, config.intermediate_size, device=device).bfloat16()

    def launched(count: int, spec: registry.KernelSpec, arguments: tuple[Tensor, ...]) -> None:
        registry.jit_launch(replace(spec, num_warps=count), arguments)

    for count in (4, 8, 16, 32):
        with registry.launching_by(partial(launched, count)):
            found[f"forward w{count}"] = time_us(partial(module.forward, gate_up), device)
            found[f"backward w{count}"] = time_us(partial(module.backward, grad_act, gate_up), device)
    return found


def products(config: ModelConfig, tokens: int) -> dict[str, Any]:
    """Microseconds of each product of a block, forward and input gradient, by arithmetic."""
    shapes = {
        "qkv": (config.qkv_dim, config.hidden_size),
        "output": (config.hidden_size, config.query_dim),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }
    found: dict[str, Any] = {}
    for name, (outputs, inputs) in shapes.items():
        for way, n, k in (("forward", outputs, inputs), ("backward", inputs, outputs)):
            a = torch.randn(tokens, k, device="cuda").bfloat16()
            b = torch.randn(n, k, device="cuda").mul_(0.02).bfloat16()
            left, right = fp8.ScaledRows.of(a), fp8.ScaledRows.of(b)
            one = torch.ones((), device="cuda")
            tensors = fp8.ScaledRows(left.data, one), fp8.ScaledRows(right.data, one)
            row = {"bfloat16": time_us(partial(torch.mm, a, b.t()), torch.device("cuda"))}
            for scales, pair in (("row", (left, right)), ("tensor", tensors)):
                for fast in (True, False):
                    call = partial(fp8.Fp8Products(torch.bfloat16, k if fast else 0).multiply, *pair)
                    row[f"{scales}{' fast' if fast else ''}"] = time_us(call, torch.device("cuda"))
                    if scales == "row":
                        exact = fp8._twin(left, right, None, torch.float32, None)
                        error = (call().float() - exact).norm() / exact.norm()
                        row[f"error{' fast' if fast else ''}"] = float(error)
            same = fp8.Fp8Products(torch.bfloat16).multiply(left, right)
            repeats = [fp8.Fp8Products(torch.bfloat16).multiply(left, right) for _ in range(20)]
            row["repeats_equal"] = all(torch.equal(same, other) for other in repeats)
            found[f"{name} {way}"] = row
    return found


class Arm:
    """One captured trainer."""

    def __init__(self, config: TrainConfig) -> None:
        self.index = 0
        self.trainer = Trainer(config)
        self.capturing = CapturingTrainer(self.trainer, "step")

    def accumulate_exactly(self) -> None:
        """Leave out fast accumulation, to see what it costs."""
        model = self.trainer.model
        if isinstance(model, Fp8Model):
            model.products.most_terms_fast = 0

    def prepare(self, seq_len: int) -> dict[str, Any]:
        """Capture a shape; peak memory above what was there before this arm and its earlier shapes, GiB."""
        on_gpu = self.trainer.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
            self.capturing.forget_captures()
            torch.cuda.empty_cache()
            others = torch.cuda.memory_allocated() - self.own
            torch.cuda.reset_peak_memory_stats()
        self.trainer.set_shape(seq_len)
        losses = [float(self.step()) for _ in range(3)]
        record = self.capturing.record()
        peak = (torch.cuda.max_memory_allocated() - others) / 2**30 if on_gpu else None
        return {"captured": record.captured, "failure": record.failure, "peak_gib": peak, "losses": losses}

    @property
    def own(self) -> int:
        """Bytes of weights and state."""
        tensors = [*self.trainer.frozen_tensors().values(), *self.trainer.state_tensors().values()]
        head = getattr(self.trainer.model, "fp8_head", None)
        if head is not None:
            tensors += [head.rows.data, head.transposed.data]
        return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())

    def step(self) -> Tensor:
        self.index += 1
        return self.capturing.step(self.index - 1)


def steps(arms: dict[str, Arm], config: ModelConfig, seq_lens: list[int], results: Results) -> dict[str, Any]:
    """Milliseconds of captured steps and of the bare products, round by round; profiles go to a file each."""
    found: dict[str, Any] = {}
    for seq_len in seq_lens:
        device = next(iter(arms.values())).trainer.device
        entry: dict[str, Any] = {name: arm.prepare(seq_len) for name, arm in arms.items()}
        floor = GemmFloor(config, BATCH * seq_len, device)
        calls: dict[str, Callable[[], object]] = {name: arm.step for name, arm in arms.items()}
        calls["floor"] = partial(floor.step, 0)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                call()
                synchronize(device)
                began = time.perf_counter()
                for _ in range(STEPS_A_ROUND):
                    call()
                synchronize(device)
                times[name].append((time.perf_counter() - began) * 1e3 / STEPS_A_ROUND)
        medians = {name: statistics.median(each) for name, each in times.items()}
        entry |= {"median_ms": medians, "rounds_ms": times}
        entry["ratio_to_floor"] = {name: ms / medians["floor"] for name, ms in medians.items()}
        if device.type == "cuda" and "fp8" in arms:
            spans = record_spans(lambda _: arms["fp8"].step(), 0, device)
            text = render(f"captured fp8, seq {seq_len}", spans, medians["fp8"], medians["fp8"])
            (results.folder / f"profile-fp8-{seq_len}.txt").write_text(text + "\n")
        del floor
        found[str(seq_len)] = entry
        print(seq_len, json.dumps(entry["median_ms"]), flush=True)
    for arm in arms.values():
        arm.capturing.forget_captures()
    return found


def equality(config: TrainConfig, seq_len: int) -> dict[str, Any]:
    """Eight captured steps and eight plain ones from one start: losses, and differing elements of the parameters."""
    ends, losses = [], []
    for scope in ("none", "step"):
        trainer = Trainer(replace(config, seq_len=seq_len))
        capturing = CapturingTrainer(trainer, scope)
        losses.append([float(capturing.step(index)) for index in range(8)])
        ends.append(trainer.trainable.flat.clone())
        capturing.close()
    return {"losses": losses, "differing_parameters": int((ends[0] != ends[1]).sum()), "equal": losses[0] == losses[1]}


def errors(arms: dict[str, Arm], config: TrainConfig, seq_len: int) -> dict[str, Any]:
    """Gradients against those of float32 at the parameters that the first arm has reached."""
    reference = Trainer(replace(config, dtype="float32", precision="dtype", seq_len=seq_len))
    start = next(iter(arms.values())).trainer.trainable.flat.clone()
    grown: dict[str, dict[str, Tensor]] = {}
    found: dict[str, Any] = {"losses": {}}
    for name, trainer in {"reference": reference, **{name: arm.trainer for name, arm in arms.items()}}.items():
        trainer.set_shape(seq_len)
        trainer.trainable.flat.copy_(start)
        trainer.prepare(7)
        found["losses"][name] = float(trainer.gradients_body())
        grown[name] = {key: value.clone() for key, value in trainer.gradients().items()}
    exact = grown.pop("reference")
    for name, gradients in grown.items():
        relative = {key: float((gradients[key] - exact[key]).norm() / exact[key].norm()) for key in exact}
        values = sorted(value for value in relative.values() if math.isfinite(value))
        found[name] = {
            "median": statistics.median(values),
            "largest": max(values),
            "smallest": min(values),
            "largest_of": max(relative, key=lambda key: relative[key]),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--model", choices=sorted(MODEL_PRESETS), default="qwen2-1.5b")
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[2048, 512, 128])
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    shape = MODEL_PRESETS[arguments.model]
    results = Results(arguments.out, device)
    config = TrainConfig.preset(arguments.model, batch_size=BATCH, seq_len=arguments.seq_lens[-1], max_norm=0.1)
    if on_gpu:
        name_kernels_by_operation()
        results.section("kernels", partial(kernels, shape, BATCH * 2048, device))
        results.section("warps", partial(warps, shape, BATCH * 2048, device))
        for tokens in (BATCH * 512, BATCH * 2048):
            results.section(f"products {tokens}", partial(products, shape, tokens))
    arms = {
        "bfloat16": Arm(config),
        "fp8": Arm(replace(config, precision="fp8")),
        "fp8_exact": Arm(replace(config, precision="fp8")),
    }
    arms["fp8_exact"].accumulate_exactly()
    results.section("steps", partial(steps, arms, shape, arguments.seq_lens, results))
    results.section("equality", partial(equality, replace(config, precision="fp8"), arguments.seq_lens[-1]))
    results.section("errors", partial(errors, arms, config, arguments.seq_lens[-1]))
    results.finish()


if __name__ == "__main__":
    main()
