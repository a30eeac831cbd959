"""Whole captured steps, interleaved with both floors in one process: as they are, with launches that overlap, with
other chunks of the loss, and with dense weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks import floor as floor_module
from benchmarks.floor import GemmFloor
from reference_impl import cuda_graph
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.dense import MatrixGroup
from reference_impl.kernels import registry
from reference_impl.trainer import Trainer

ROUNDS, STEPS = 5, 6
SEQ_LENS = (2048, 512, 128)
_clones: dict[tuple[int, str], Any] = {}


def _overlapping(function: Any, how: str) -> Any:
    """The kernel with a wait for the kernel before it as its first statement, and perhaps its own early signal."""
    key = (id(function), how)
    if key not in _clones:
        unaligned = [parameter.name for parameter in function.params if parameter.do_not_specialize_on_alignment]
        clone = triton.jit(function.fn, do_not_specialize_on_alignment=unaligned)
        source = function.src
        statements = "    tl.extra.cuda.gdc_wait()\n"
        if how == "signal":
            statements += "    tl.extra.cuda.gdc_launch_dependents()\n"
        changed, count = re.subn(r"(\) -> None:\n)", r"\1" + statements, source, count=1)
        if count != 1:
            raise RuntimeError(f"no signature in {function.__name__}")
        clone._unsafe_update_src(changed)
        _clones[key] = clone
    return _clones[key]


def _launcher(how: str) -> Any:
    def launch(spec: Any, arguments: Any) -> None:
        function = _overlapping(spec.function, how)
        function[spec.grid](*arguments, **spec.constexprs, **spec.options, launch_pdl=True)

    return launch


def compilations() -> list[tuple[Any, str]]:
    """Every kernel of the steps, as it is and overlapping, the slow ones first."""
    from reference_impl.prewarm import plan

    config = TrainConfig.preset("qwen2-1.5b", batch_size=4, seq_len=512)
    specs = plan(MODEL_PRESETS["qwen2-1.5b"], config, SEQ_LENS)
    more = [
        registry.load("cross_entropy").forward_backward_spec(chunk, MODEL_PRESETS["qwen2-1.5b"].vocab_size, "bf16")
        for chunk in (1024, 2048)
    ]
    specs = sorted([*specs, *more], key=lambda spec: not spec.op.startswith("attention"))
    return [(spec, how) for how in ("plain", "wait", "signal") for spec in specs]


def compile_one(spec: Any, how: str) -> None:
    if how == "plain":
        registry.compile_for_device(spec)
        return
    dtypes = [registry.torch_dtype(pointer.dtype) for pointer in spec.pointers]
    function = _overlapping(spec.function, how)
    function.warmup(*dtypes, grid=spec.grid, **spec.constexprs, **spec.options, launch_pdl=True)


def fused_shapes(config: Any) -> list[tuple[int, int]]:
    return [
        (config.qkv_dim, config.hidden_size), (config.hidden_size, config.query_dim),
        (2 * config.intermediate_size, config.hidden_size), (config.hidden_size, config.intermediate_size),
    ]  # fmt: skip


def run(path: Path) -> None:
    config = MODEL_PRESETS["qwen2-1.5b"]
    device = torch.device("cuda", 0)
    plain_shapes = floor_module.projection_shapes

    def note(line: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    trainer = Trainer(TrainConfig.preset("qwen2-1.5b", batch_size=4, seq_len=512))
    for seq_len in SEQ_LENS:
        arms: dict[str, Any] = {}
        peaks: dict[str, float] = {}
        finals: dict[str, Any] = {}
        start_state = {name: value.clone() for name, value in trainer.state_tensors().items()}

        def add(name: str, which: Trainer, *, chunk: int = 512, how: str | None = None, seq_len: int = seq_len) -> None:
            try:
                which.set_shape(seq_len)
                which.model._chunk = chunk
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                capturing = CapturingTrainer(which, "step")
                if which is trainer:
                    for key, value in start_state.items():
                        which.state_tensors()[key].copy_(value)
                if how is None:
                    capturing.step(0)
                else:
                    with registry.launching_by(_launcher(how)):
                        capturing.step(0)
                if capturing.record().failure:
                    raise RuntimeError(capturing.record().failure)
                for index in range(1, 6):
                    capturing.step(index)
                torch.cuda.synchronize()
                peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
                finals[name] = which.trainable.flat.clone()
                arms[name] = capturing
            except Exception as error:
                note({"seq_len": seq_len, "arm": name, "error": f"{type(error).__name__}: {str(error)[:500]}"})

        add("step", trainer)
        add("step, waits", trainer, how="wait")
        add("step, waits and signals", trainer, how="signal")
        if seq_len == 2048:
            for chunk in (1024, 2048):
                add(f"step, loss_chunk {chunk}", trainer, chunk=chunk)
        if seq_len == 512:
            add("step, loss_chunk 1024", trainer, chunk=1024)
        if 4 * seq_len <= cuda_graph.MOST_TOKENS_OVERLAPPED:
            usual = cuda_graph.MOST_TOKENS_OVERLAPPED
            cuda_graph.MOST_TOKENS_OVERLAPPED = 0
            add("step, one stream", trainer)
            add("step, one stream, waits and signals", trainer, how="signal")
            cuda_graph.MOST_TOKENS_OVERLAPPED = usual
        kept: dict[int, Any] = {}
        make_dense = MatrixGroup.dense

        def remembered(group: Any, dtype: Any) -> Any:
            if id(group) not in kept:
                kept[id(group)] = make_dense(group, dtype)
            return kept[id(group)]

        for block in trainer.model.blocks:
            for group in block.weights.forward_groups:
                remembered(group, torch.bfloat16)
        MatrixGroup.dense = remembered  # type: ignore[method-assign]
        add("step, dense weights", trainer)
        MatrixGroup.dense = make_dense  # type: ignore[method-assign]
        calls = {name: arm.step for name, arm in arms.items()}
        floor_module.projection_shapes = plain_shapes
        calls["floor"] = GemmFloor(config, 4 * seq_len, device).step
        floor_module.projection_shapes = fused_shapes
        calls["fused floor"] = GemmFloor(config, 4 * seq_len, device).step
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                call(10)
                events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
                events[0].record()
                for index in range(STEPS):
                    call(11 + index)
                    events[index + 1].record()
                torch.cuda.synchronize()
                times[name] += [a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)]
        floor_ms = sorted(times["floor"])[len(times["floor"]) // 2]
        for name, mine in times.items():
            ms = sorted(mine)[len(mine) // 2]
            equal = bool(torch.equal(finals[name], finals["step"])) if name in finals and "step" in finals else None
            line = {
                "seq_len": seq_len, "arm": name, "ms": round(ms, 3), "min": round(min(mine), 3),
                "of_floor": round(ms / floor_ms, 4), "peak_gib_beside_weights": peaks.get(name),
                "equal_to_step": equal,
            }  # fmt: skip
            note(line)
        for arm in arms.values():
            arm.close()
        calls.clear()
        arms.clear()
        torch.cuda.empty_cache()
