"""Compare the training step whose products run in FP8 with the bfloat16 step, in five sections.

    python -m benchmarks.fp8_step --out results/fp8 [--model qwen2-1.5b] [--seq-lens 512 2048 128]

Each section is written to fp8.json as soon as it is measured. The file is complete if `complete` is true:

    kernels     each FP8 kernel: elements that differ from its naive twin, its time, and the bfloat16 kernel's time
    products    times of a block's products in bfloat16, and in FP8 with row or tensor scales, by both accumulations
    steps       times of captured steps and of the bfloat16 products of `benchmarks.floor`, in turns; peaks of memory
    equality    captured steps compared with plain ones, bit by bit
    errors      gradients of fp8 and bfloat16 compared with float32 at the same parameters
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
from benchmarks.fp8_kernels import kernels, products
from benchmarks.kernel_kinds import name_kernels_by_operation
from benchmarks.measure import environment, synchronize
from benchmarks.profile_step import record_spans, render
from reference_impl.config import MODEL_PRESETS, ModelConfig, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.fp8_model import Fp8Model
from reference_impl.trainer import Trainer

BATCH = 4
ROUNDS = 4
STEPS_A_ROUND = 5


class Results:
    """The content of fp8.json, which is written again after each section."""

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

    def table(self) -> str:
        """Return a table of the captured steps, for fp8.md."""
        rows = ["| tokens of a sequence | arm | step, ms | over the bare bfloat16 products | peak, GiB |"]
        rows.append("| --- | --- | --- | --- | --- |")
        for seq_len, entry in self._content.get("steps", {}).items():
            for arm, ms in entry["median_ms"].items():
                peak = entry[arm]["peak_gib"] if arm in entry else None
                shown = "" if peak is None else f"{peak:.2f}"
                rows.append(f"| {seq_len} | {arm} | {ms:.2f} | {entry['ratio_to_floor'][arm]:.3f} | {shown} |")
        return "\n".join(rows)

    def finish(self) -> None:
        self._content |= {"complete": True, "seconds": time.monotonic() - self._began}
        self._write()
        (self.folder / "fp8.md").write_text(
            f"Captured steps on {self._content['environment']['device']}.\n\n{self.table()}\n"
        )

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._content, indent=1, default=str) + "\n")


class Arm:
    """One arm: a trainer whose step is captured."""

    def __init__(self, config: TrainConfig) -> None:
        self.index = 0
        self.trainer = Trainer(config)
        self.capturing = CapturingTrainer(self.trainer, "step")

    def accumulate_exactly(self) -> None:
        """Switch off fast accumulation, to measure how much time exact accumulation costs."""
        model = self.trainer.model
        if isinstance(model, Fp8Model):
            model.products.most_terms_fast = 0

    def prepare(self, seq_len: int) -> dict[str, Any]:
        """Capture the step at a sequence length. Return the peak memory in GiB, without the memory of other arms."""
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
        """Return the number of bytes of the trainer's weights and state. Tensors that share memory count once."""
        tensors = [*self.trainer.frozen_tensors().values(), *self.trainer.state_tensors().values()]
        head = getattr(self.trainer.model, "fp8_head", None)
        if head is not None:
            tensors += [head.rows.data, head.transposed.data]
        return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())

    def step(self) -> Tensor:
        self.index += 1
        return self.capturing.step(self.index - 1)


def steps(arms: dict[str, Arm], config: ModelConfig, seq_lens: list[int], results: Results) -> dict[str, Any]:
    """Return, by sequence length, the times in ms of the captured step of each arm and of the bfloat16 products alone.

    All of these are timed in turns in each round. For each sequence length, a profile of the FP8 step is written to a
    file.
    """
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
    """Train eight captured and eight plain steps from the same start.

    Returns, by name, the losses of both arms, whether the losses are equal, and the number of parameters that differ.
    """
    ends, losses = [], []
    for scope in ("none", "step"):
        trainer = Trainer(replace(config, seq_len=seq_len))
        capturing = CapturingTrainer(trainer, scope)
        losses.append([float(capturing.step(index)) for index in range(8)])
        ends.append(trainer.trainable.flat.clone())
        capturing.close()
    return {"losses": losses, "differing_parameters": int((ends[0] != ends[1]).sum()), "equal": losses[0] == losses[1]}


def errors(arms: dict[str, Arm], config: TrainConfig, seq_len: int) -> dict[str, Any]:
    """Return the errors of the arms' gradients relative to float32, at the parameters of the first arm."""
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
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
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
