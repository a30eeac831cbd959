"""Record the kernels of a training step without a GPU, by running the trainer's step on fake tensors.

Fake tensors have shapes and dtypes but no data, so a step of 28 layers takes about a second and hardly any memory. Each
operator calls the wrapper of its CUDA kernel, as it does for CUDA tensors. The launches are recorded and not executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from reference_impl import ops
from reference_impl.config import ModelConfig, TrainConfig
from reference_impl.kernels import registry
from reference_impl.kernels.registry import KernelSpec
from reference_impl.kernels.target import hopper
from reference_impl.trainer import Trainer


def recorded(model: ModelConfig, config: TrainConfig, seq_lens: tuple[int, ...]) -> tuple[KernelSpec, ...]:
    """Return the kernels that steps of these sequence lengths launch on CUDA, each once, in order of their first
    launch.

    The kernels are those of the target that a surrounding `planning_for` names (see `kernels/target.py`).
    """
    return _recorded(model, config, seq_lens, hopper())


# For most targets, a step launches the same kernels. With a cache, a process records it once for all of these.
@lru_cache(maxsize=8)
def _recorded(
    model: ModelConfig,
    config: TrainConfig,
    seq_lens: tuple[int, ...],
    _hopper: bool,  # a part of the cache's key, because a step on Hopper launches other kernels than one on another GPU
) -> tuple[KernelSpec, ...]:
    launched: dict[KernelSpec, None] = {}

    def record(spec: KernelSpec, _arguments: tuple[Tensor, ...]) -> None:
        launched.setdefault(spec)

    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    with TemporaryDirectory() as folder, FakeTensorMode(allow_non_fake_inputs=True), _as_on_cuda():
        # Use an empty text, because the trainer checks the values of a text's tokens, and fake tensors have no values.
        # The step does not need the text: it reads only the static batch.
        empty = Path(folder) / "empty.txt"
        empty.touch()
        trainer = Trainer(replace(config, model=model, device="cpu", dtype=dtype, data=str(empty)))
        with registry.launching_by(record):
            for seq_len in seq_lens:
                trainer.set_shape(seq_len)
                trainer.body()
    return tuple(launched)


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Make every operator call the wrapper of its CUDA kernel inside the `with`, for tensors of any device."""

    def pick(op: str, tensor: Tensor) -> ModuleType:  # noqa: ARG001 - the replaced function's signature
        return registry.load(op)

    original, ops._pick = ops._pick, pick
    try:
        yield
    finally:
        ops._pick = original
