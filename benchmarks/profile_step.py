"""Profile one training step, captured and uncaptured, kernel by kernel.

    python -m benchmarks.profile_step [--model qwen2-1.5b] [--seq-lens 128 512] [--out profile.txt]

On a GPU the rows of the tables are kernels. On a CPU, where the script can be tried with ``--model tiny``, the rows are
ATen operators. ``sum`` is the sum of the kernels' times. ``span`` is the time from the start of the first kernel to the
end of the last one, and ``idle`` is the part of ``span`` in which no kernel ran. If kernels run in parallel, ``sum`` is
larger than ``span - idle``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.kernel_kinds import KINDS, kind_of, name_kernels_by_operation
from benchmarks.measure import environment, synchronize, time_steps
from reference_impl.config import Precision, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.trainer import Trainer

PROFILED_STEPS = 2
TIMED_STEPS = 20
WARMUP_STEPS = 3
LISTED_KERNELS = 40


@dataclass(frozen=True)
class Span:
    """One execution of a kernel or operator, in microseconds. ``cost_us`` excludes nested operators."""

    name: str
    start_us: float
    end_us: float
    cost_us: float


def record_spans(step: Callable[[int], object], first: int, device: torch.device) -> list[Span]:
    """Profile `PROFILED_STEPS` steps, and return the spans. Raises RuntimeError if there are none (no CUPTI)."""
    on_gpu = device.type == "cuda"
    wanted = "CUDA" if on_gpu else "CPU"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        for index in range(first, first + PROFILED_STEPS):
            step(index)
        synchronize(device)
    spans = [
        Span(event.name, event.time_range.start, event.time_range.end, _cost(event, on_gpu=on_gpu))
        for event in profiler.events() or []
        if event.device_type.name == wanted and not getattr(event, "is_user_annotation", False)
    ]
    if not any(span.cost_us for span in spans):
        raise RuntimeError("the profiler recorded no kernel; check that CUPTI can be used on this machine")
    return sorted(spans, key=lambda span: span.start_us)


def _cost(event: Any, *, on_gpu: bool) -> float:
    """Return the time of an event in us. On a CPU, where operators are nested, leave out inner operators."""
    return float(event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total)


def busy_us(spans: Sequence[Span]) -> float:
    """Return the time during which at least one of the spans ran. The spans must be sorted by start."""
    total, reached = 0.0, float("-inf")
    for span in spans:
        total += max(0.0, span.end_us - max(reached, span.start_us))
        reached = max(reached, span.end_us)
    return total


def totals(spans: Sequence[Span], key: Callable[[str], str]) -> dict[str, tuple[float, float]]:
    """Return the milliseconds and the number of spans in one step, by ``key(name of the span)``.

    Entries with the most milliseconds come first.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for span in spans:
        entry = sums[key(span.name)]
        entry[0] += span.cost_us / 1e3 / PROFILED_STEPS
        entry[1] += 1 / PROFILED_STEPS
    return {name: (ms, count) for name, (ms, count) in sorted(sums.items(), key=lambda item: -item[1][0])}


def shorten(name: str, width: int = 110) -> str:
    """Return a kernel's name on one line. A long name keeps its beginning and its end. The end names the functor."""
    flat = " ".join(name.replace("void ", "").split())
    return flat if len(flat) <= width else f"{flat[: width - 43]}…{flat[-42:]}"


def render(title: str, spans: Sequence[Span], median_ms: float, block_ms: float) -> str:
    """Return two tables for one arm: the kinds of kernels, and the kernels that take most time."""
    span_ms = (max(span.end_us for span in spans) - spans[0].start_us) / 1e3 / PROFILED_STEPS
    sum_ms = sum(span.cost_us for span in spans) / 1e3 / PROFILED_STEPS
    idle_ms = span_ms - busy_us(spans) / 1e3 / PROFILED_STEPS
    profiled = f"sum {sum_ms:.2f} ms, span {span_ms:.2f} ms, idle {idle_ms:.2f} ms"
    lines = [
        f"== {title}",
        f"unprofiled step: median {median_ms:.2f} ms, in a block {block_ms:.2f} ms",
        f"profiled, a step: {profiled}, {len(spans) / PROFILED_STEPS:.0f} kernels",
        f"{'kind':<22}{'ms':>9}{'share':>8}{'count':>8}{'us each':>10}",
    ]
    by_kind = totals(spans, kind_of)
    for kind in sorted(KINDS, key=lambda kind: -by_kind.get(kind, (0.0, 0.0))[0]):
        if kind in by_kind:
            ms, count = by_kind[kind]
            lines.append(f"{kind:<22}{ms:>9.3f}{ms / sum_ms:>8.1%}{count:>8.0f}{ms * 1e3 / count:>10.2f}")
    lines.append(f"{'ms':>9}{'count':>7}{'us each':>9}  {'kind':<18} kernel")
    for name, (ms, count) in list(totals(spans, str).items())[:LISTED_KERNELS]:
        lines.append(f"{ms:>9.3f}{count:>7.0f}{ms * 1e3 / count:>9.2f}  {kind_of(name):<18} {shorten(name)}")
    return "\n".join(lines)


def profile_arm(trainer: Trainer, scope: str, title: str) -> str:
    """Warm up, time and profile one arm at the trainer's current shape. Return the tables as text."""
    arm = CapturingTrainer(trainer, scope)
    try:
        for index in range(WARMUP_STEPS):
            arm.step(index)
        failure = arm.record().failure
        if failure is not None:
            raise RuntimeError(f"the step was not captured: {failure}")
        times = time_steps(arm.step, WARMUP_STEPS, TIMED_STEPS, trainer.device)
        spans = record_spans(arm.step, WARMUP_STEPS + 2 * TIMED_STEPS, trainer.device)
    finally:
        arm.close()
    return render(title, spans, times.median_ms, times.block_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2-1.5b")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--precision", choices=get_args(Precision), default="dtype", help="of products with weights")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="profile-triton-")
        name_kernels_by_operation()
    sizes = {"batch_size": arguments.batch_size, "seq_len": arguments.seq_lens[0]}
    config = TrainConfig.preset(arguments.model, **sizes, precision=arguments.precision)
    trainer = Trainer(config)
    tables = [str(environment())]
    print(tables[0], flush=True)
    for seq_len in arguments.seq_lens:
        trainer.set_shape(seq_len)
        for scope, name in (("none", "uncaptured"), ("step", "captured")):
            shape = f"{arguments.model}, batch {arguments.batch_size}, seq {seq_len}"
            tables.append(profile_arm(trainer, scope, f"{name}: {shape}"))
            print(tables[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
