"""The transformers twin in a chosen precision, on any device, trained with one seed after another. It has two uses:

- In `bfloat16` it is a peer, another project's implementation in the usual mixed precision. Weights and activations are
  bfloat16, trained tensors and AdamW are float32, and matrix products run under torch's autocast.
- In `float32` or `float64` it is a reference. All parameters have this type, TF32 is off, and attention uses plain
  matrix products. transformers still computes norms, rotation tables and the loss in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness.system.protocol import NotAvailable, Scalar, SystemDescription
from reference_impl.transformers_twin.declared import ARM_OPTIONS, WORKLOAD_OPTIONS, Declared, declared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from harness.system.protocol import Arm, Workload

MODULES = ("transformers", "peft", "bitsandbytes")


class TransformersPeer:
    """QLoRA built from transformers, peft, bitsandbytes and torch.optim. It reads only a checkpoint and settings."""

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name="transformers peer",
            summary="transformers + peft + bitsandbytes + torch.optim, with only the settings of the contract",
            models=(),
            arm_options=ARM_OPTIONS,
            workload_options=WORKLOAD_OPTIONS,
            capabilities=frozenset({"inputs", "parameters", "gradients", "gradient_norms", "peer"}),
        )

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> PeerRun:
        if fault is not None:
            raise ValueError("no fault can be planted in a transformers peer; plant it in the trainer's arm")
        missing = [name for name in MODULES if find_spec(name) is None]
        if missing:
            raise NotAvailable(f"needs the Python modules {', '.join(missing)}, which are not installed")
        return PeerRun(declared(workload, arm, data, model_directory), _device(workload))


def _device(workload: Workload) -> torch.device:
    import torch

    if workload.needs.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


class PeerRun:
    """One opened peer. It reads the model once. For each seed it starts the training anew from this model."""

    def __init__(self, told: Declared, device: torch.device) -> None:
        import torch

        from reference_impl.transformers_twin.text import read_text, tokens_of
        from reference_impl.transformers_twin.weights import build

        self._told, self._device = told, device
        self._model, self._trained = build(told, device)
        self._first = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        self._tokens = tokens_of(read_text(told.text), told.checkpoint)
        self._max_norm = torch.full((), told.max_norm, device=device)
        self.restart(told.seed)

    def restart(self, seed: int) -> None:
        import torch

        from reference_impl.transformers_twin.run import schedule
        from reference_impl.transformers_twin.text import Windows
        from reference_impl.transformers_twin.weights import draw

        told = self._told = replace(self._told, seed=seed)
        self._take(self._first)
        draw(self._trained, seed)
        self._windows = Windows(self._tokens, told.batch_size, told.seq_len, seed)
        self._batch = torch.zeros(told.batch_size, told.seq_len + 1, dtype=torch.int64, device=self._device)
        self._norms = torch.zeros(len(self.gradient_groups()), device=self._device)
        self._optimizer = torch.optim.AdamW(
            self._trained.values(),
            lr=told.learning_rate,
            betas=(told.beta1, told.beta2),
            eps=told.eps,
            weight_decay=told.weight_decay,
        )
        self._schedule = schedule(self._optimizer, told)

    def step(self, index: int) -> Tensor:
        """Run one step of the peer's training, and return the loss (0-d). Call this for the steps of a seed in
        order."""
        loss = self._evaluate(index)
        self._optimizer.step()
        self._schedule.step()
        return loss

    def evaluate(self, index: int, parameters: Mapping[str, Tensor]) -> Tensor:
        self._take(parameters)
        return self._evaluate(index)

    def _evaluate(self, index: int) -> Tensor:
        """Return transformers' mean loss (0-d) over the batch's next tokens. Also compute the gradients and clip
        them."""
        import torch

        self._batch = self._windows.batch(index).to(self._device)
        self._model.zero_grad(set_to_none=True)
        with reference_arithmetic() if self._is_reference else nullcontext():
            with self._autocast():
                output = self._model(input_ids=self._batch, labels=self._batch, use_cache=False)
            if output.logits.dtype != getattr(torch, self._told.dtype):
                raise RuntimeError(
                    f"a model with data type {self._told.dtype} returned logits in {output.logits.dtype}; "
                    "use a version of transformers that keeps the data type"
                )
            loss: Tensor = output.loss
            torch.autograd.backward(loss)
        norms = [
            torch.nn.utils.clip_grad_norm_([self._trained[name] for name in names], self._told.max_norm)
            for names in self.gradient_groups().values()
        ]
        self._norms = torch.stack(norms)
        return loss.detach()

    @property
    def _is_reference(self) -> bool:
        return self._told.dtype != "bfloat16"

    def _autocast(self) -> AbstractContextManager[object]:
        import torch

        return nullcontext() if self._is_reference else torch.autocast(self._device.type, dtype=torch.bfloat16)

    def _take(self, parameters: Mapping[str, Tensor]) -> None:
        import torch

        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(parameters[name])

    def facts(self) -> Mapping[str, Scalar]:
        import torch

        from reference_impl.transformers_twin.weights import versions

        with reference_arithmetic() if self._is_reference else nullcontext():
            precision = torch.get_float32_matmul_precision()
        return {
            "device": str(self._device),
            # Read the data types of the tensors and not of the settings, because a judge relies on this fact.
            "dtype": ", ".join(sorted({str(each.dtype).removeprefix("torch.") for each in self.frozen().values()})),
            "tf32": precision != "highest",
            "layers": int(self._model.config.num_hidden_layers),
            "trainable_parameters": sum(parameter.numel() for parameter in self._trained.values()),
            **versions(self._told),
        }

    def inputs(self) -> Mapping[str, Tensor]:
        return {"tokens": self._batch[:, :-1], "targets": self._batch[:, 1:]}

    def parameters(self) -> Mapping[str, Tensor]:
        return self._trained

    def frozen(self) -> Mapping[str, Tensor]:
        return {name: tensor for name, tensor in self._model.named_parameters() if not tensor.requires_grad}

    def gradients(self) -> Mapping[str, Tensor]:
        return {name: parameter.grad for name, parameter in self._trained.items() if parameter.grad is not None}

    def gradient_norms(self) -> Mapping[str, Tensor]:
        return {"before": self._norms, "max_norm": self._max_norm}

    def gradient_groups(self) -> Mapping[str, Sequence[str]]:
        groups: dict[str, list[str]] = {}
        for name in self._trained:
            groups.setdefault(name.rpartition(".")[0], []).append(name)
        return groups

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the model."""
        self._trained, self._first = {}, {}
        del self._model, self._optimizer, self._schedule


@contextmanager
def reference_arithmetic() -> Iterator[None]:
    """Switch off TF32 and fused attention inside the `with`, because fused float32 kernels may use TF32."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
