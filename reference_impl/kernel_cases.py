"""Comparisons of the reference trainer's kernels for `kernel_match` claims, at a workload's shapes and ragged ones.

On a CUDA device the kernels are compiled and executed on the device. On a CPU Triton interprets the kernels, but only
in fp32, because interpreted bf16 gives wrong values without an error. A second process compiles the kernels for
`OFFLINE_SM`, so that metadata of compiled kernels is also available on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from torch import Tensor

from harness.system.protocol import Kernel, KernelCall, KernelComparison, NotAvailable
from reference_impl.checkpoint import read_config
from reference_impl.clip_cases import CLIP_OPERATIONS, GAIN_OPERATION, clip_comparisons, gain_comparisons
from reference_impl.config import MODEL_PRESETS, ModelConfig, TrainConfig
from reference_impl.gemm import HALF_TYPES
from reference_impl.gemm_cases import OPERATIONS, GemmShapes, comparisons
from reference_impl.kernel_table import KernelTable, kernel_table
from reference_impl.kernels import registry
from reference_impl.kernels.registry import KernelSpec, jit_launch, launching_by
from reference_impl.kernels.target import hopper
from reference_impl.offline_compiler import OfflineCompilation, compiled_kernel
from reference_impl.step_cases import BFLOAT16_ALONE, FLOAT32_ALONE, STEP_OPERATIONS, Setting
from reference_impl.trainer import resolve_device

OFFLINE_SM = 90  # compute capability 9.0 (Hopper), that of the GPUs on which published runs were made
_TYPE_NAMES = {"fp16": "float16", "bf16": "bfloat16"}


class ReferenceKernelCases:
    """Comparisons of an arm's kernels with naive twins. `plant`: a function that plants a fault in them, or None."""

    def __init__(self, config: TrainConfig, plant: Callable[[KernelTable], None] | None = None) -> None:
        self.device = resolve_device(config.device)
        self._config = config
        self._model = _model_config(config)
        self._tokens = config.micro_batch_size * config.seq_len
        self._launched: dict[str, KernelSpec] = {}
        self._planned: dict[str, KernelSpec] = {}
        self._compilation: OfflineCompilation | None = None
        self.table = kernel_table(config.gemm, self.device)
        if plant is not None:
            plant(self.table)

    def comparisons(
        self, operations: Sequence[str], dtypes: Sequence[str], magnitudes: Sequence[float]
    ) -> Iterator[KernelComparison]:
        self._refuse(operations, dtypes)
        if self._config.gemm == "tiled":
            self._plan_tiled([operation for operation in operations if operation in OPERATIONS])
        if self.device.type == "cpu":
            self._compilation = OfflineCompilation(list(self._planned.values()), OFFLINE_SM)
        for operation in operations:
            for comparison in self._of(operation, dtypes, magnitudes):
                yield replace(comparison, kernel=self._recorded(comparison.kernel))

    def _refuse(self, operations: Sequence[str], dtypes: Sequence[str]) -> None:
        known = (*OPERATIONS, *CLIP_OPERATIONS, GAIN_OPERATION, *STEP_OPERATIONS)
        unknown = [operation for operation in operations if operation not in known]
        if unknown:
            raise ValueError(f"there is no operation {unknown[0]!r}; use one of {', '.join(known)}")
        if self.device.type == "cpu" and set(dtypes) - {"float32"} and self._config.gemm not in HALF_TYPES:
            raise NotAvailable("needs CUDA, because interpreted kernels compute only in float32")
        single = [operation for operation in operations if operation in FLOAT32_ALONE]
        if single and set(dtypes) != {"float32"}:
            raise ValueError(f"{single[0]} cannot be compared in {', '.join(dtypes)}; use only float32")
        half = [operation for operation in operations if operation in BFLOAT16_ALONE]
        if half and set(dtypes) != {"bfloat16"}:
            raise ValueError(f"{half[0]} cannot be compared in {', '.join(dtypes)}; use only bfloat16")
        if half and not hopper():
            raise NotAvailable(
                f"{half[0]} needs a GPU of compute capability 9.0, because only this GPU has the kernel's instructions"
            )
        wanted = _TYPE_NAMES.get(self._config.gemm)
        if wanted is not None and set(dtypes) != {wanted}:
            raise ValueError(f"the path {self._config.gemm} keeps its weights in {wanted}, not in {', '.join(dtypes)}")

    def _of(self, operation: str, dtypes: Sequence[str], magnitudes: Sequence[float]) -> Iterator[KernelComparison]:
        config, model = self._config, self._model
        if operation in CLIP_OPERATIONS:
            return clip_comparisons(self.table, operation, model, config.rank, magnitudes, self.device)
        if operation == GAIN_OPERATION:
            return gain_comparisons(self.table, self._tokens, model.hidden_size, dtypes, magnitudes, self.device)
        if operation in STEP_OPERATIONS:
            settings = (
                Setting(self.table, config, model, dtype, magnitude, self.device)
                for dtype in dtypes
                for magnitude in magnitudes
            )
            return chain.from_iterable(map(STEP_OPERATIONS[operation], settings))
        return comparisons(self.table, config.gemm, operation, self._shapes(), dtypes, magnitudes, self.device)

    def _shapes(self) -> GemmShapes:
        return GemmShapes(self._model, self._tokens, self._config.rank)

    def _plan_tiled(self, operations: Sequence[str]) -> None:
        """Add the kernels that a prewarm would plan for the tiled products to `_planned`. `compiled` returns them, so
        that a claim can compare their tiles and threads with those of launched kernels."""
        for operation in operations:
            accumulate = operation.endswith("_accumulate")
            for m, k, n in self._shapes().of(operation):
                for spec in registry.load("gemm").specializations(m=m, k=k, n=n, accumulate=accumulate):
                    if spec.op == operation.removesuffix("_accumulate"):
                        self._planned[spec.key] = spec

    def _recorded(self, kernel: KernelCall) -> KernelCall:
        def launch(spec: KernelSpec, arguments: tuple[Tensor, ...]) -> None:
            self._launched[spec.key] = spec
            jit_launch(spec, arguments)

        def call(outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
            with launching_by(launch):
                return kernel(outputs)

        return call

    def compiled(self) -> list[Kernel]:
        """Return the compiled kernels. On a CPU, return only the kernels of the tiled products, because no claim reads
        other compiled kernels."""
        if self.device.type != "cpu":
            specs = (self._planned | self._launched).values()
            return [compiled_kernel(spec, registry.compile_for_device(spec)) for spec in specs]
        planned = self._compilation.kernels() if self._compilation is not None else []
        unplanned = [
            spec for key, spec in self._launched.items() if key not in self._planned and spec.op.startswith("gemm.")
        ]
        return planned + OfflineCompilation(unplanned, OFFLINE_SM).kernels()

    def constants(self) -> dict[str, int]:
        """Return the tile size and the unroll factor of the launched tiled products, or {} if none was launched."""
        found: dict[str, int] = {}
        for spec in self._launched.values():
            if spec.op.startswith("gemm."):
                found = {"tile": int(spec.constexprs["SIZE"]), "unroll": int(spec.constexprs["UNROLLED"])}
        return found


def _model_config(config: TrainConfig) -> ModelConfig:
    if isinstance(config.model, ModelConfig):
        return config.model
    return MODEL_PRESETS.get(config.model) or read_config(Path(config.model))
