"""Repeat a training in transformers, peft and torch's AdamW: the other arm of a claim that a plain step is right.

An arm names the system it mirrors:
`{system: harness.extras.trainers.huggingface:TransformersQLoRA, twin_of: module:System}`.
That system is opened too, uncaptured and without a fault. It gives the checkpoint, the first values of what is trained,
the batches and the learning rates (`ExportsCheckpoint`). Forward, backward, clip and update are the libraries'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from harness.errors import SystemResolutionError
from harness.system.protocol import (
    CheckpointExport,
    ExportsCheckpoint,
    HasParameters,
    NotAvailable,
    Scalar,
    SystemDescription,
    TrainingRun,
)
from harness.system.resolve import resolve

if TYPE_CHECKING:
    from torch import Tensor

    from harness.contract.schema import Arm, Workload


class TransformersQLoRA:
    """Trains what `twin_of` trains, in float32, without a capture."""

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name="transformers QLoRA twin",
            summary="transformers + peft + torch.optim.AdamW on another system's checkpoint, batches and schedule",
            models=(),
            arm_options={"twin_of": str},
            workload_options={},
            capabilities=frozenset({"inputs", "parameters", "state", "gradients", "gradient_norms"}),
        )

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> TransformersRun:
        settings = arm.settings()
        twin_of = settings.pop("twin_of", None)
        if fault is not None or not isinstance(twin_of, str):
            raise ValueError("a transformers twin has no faults, and its arm names the other system as `twin_of`")
        _require_modules()
        from harness.contract.schema import Arm

        mirrored = Arm.model_validate({"capture": "none", **settings})
        twin = resolve(twin_of).open(workload, mirrored, data=data, model_directory=model_directory)
        return TransformersRun(twin, twin_of)


def _require_modules() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("transformers", "peft") if find_spec(name) is None]
    if missing:
        raise NotAvailable(f"needs the Python modules {' and '.join(missing)}")


class TransformersRun:
    """A peft model trained on the mirrored system's batches; names of parameters are the mirrored system's."""

    def __init__(self, twin: TrainingRun, name: str) -> None:
        import torch

        if not (isinstance(twin, ExportsCheckpoint) and isinstance(twin, HasParameters)):
            raise NotAvailable(f"{name} lacks the capability `export_checkpoint`")
        self._twin_run, self._twin = twin, twin
        self._export = twin.export_checkpoint()
        self._device = torch.device(str(twin.facts().get("device", "cpu")))
        self._model = _build_model(self._export, name).to(self._device)
        self._parameters = _trainable(self._model, self._export, twin.parameters(), name)
        settings: dict[str, Any] = dict(self._export.optimizer)
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=0.0, **settings, foreach=False, fused=False)
        self._inputs: dict[str, Tensor] = {}
        self._max_norm = torch.full((), self._export.max_norm, device=self._device)
        self._norms = torch.zeros(len(self._export.groups), device=self._device)

    def step(self, index: int) -> Tensor:
        import torch

        tokens, targets = (tensor.to(self._device) for tensor in self._twin.batch(index))
        self._inputs = {"tokens": tokens, "targets": targets}
        self._optimizer.zero_grad()
        logits = self._model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        torch.autograd.backward(loss)
        norms = [
            torch.nn.utils.clip_grad_norm_([self._parameters[name] for name in names], self._export.max_norm)
            for names in self._export.groups.values()
        ]
        self._norms = torch.stack(norms)
        self._optimizer.param_groups[0]["lr"] = self._twin.learning_rate_at(index)
        self._optimizer.step()
        return loss.detach()

    def facts(self) -> Mapping[str, Scalar]:
        import peft
        import transformers

        return {
            **self._twin_run.facts(),
            "device": str(self._device),
            "dtype": "float32",
            "transformers": transformers.__version__,
            "peft": peft.__version__,
        }

    def inputs(self) -> Mapping[str, Tensor]:
        return self._inputs

    def parameters(self) -> Mapping[str, Tensor]:
        return self._parameters

    def frozen(self) -> Mapping[str, Tensor]:
        trained = {id(parameter) for parameter in self._parameters.values()}
        return {name: tensor for name, tensor in self._model.named_parameters() if id(tensor) not in trained}

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        from harness.system.replay.found_state import found_state

        # frozen weights have their own digest
        found = found_state(self._model, self._optimizer, parameters={**self._parameters, **self.frozen()})
        return {category: found[category] for category in ("buffers", "optimizer")}

    def gradients(self) -> Mapping[str, Tensor]:
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def gradient_norms(self) -> Mapping[str, Tensor]:
        return {"before": self._norms, "max_norm": self._max_norm}

    def gradient_groups(self) -> Mapping[str, Sequence[str]]:
        return self._export.groups

    def __enter__(self) -> Self:
        self._twin_run.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._twin_run.__exit__(*raised)


def _build_model(export: CheckpointExport, name: str) -> Any:
    """Return the peft model with the exported weights, in float32. Raises `SystemResolutionError` if names differ."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(export.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config).float()
    found = model.load_state_dict({key: tensor.float() for key, tensor in export.state.items()}, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    wrong = sorted({*found.unexpected_keys, *(set(found.missing_keys) - tied)})
    if wrong:
        _refuse(name, "an exported checkpoint must have transformers' tensors, no more and no fewer", wrong)
    model.tie_weights()
    lora: dict[str, Any] = dict(export.lora)
    return get_peft_model(model, LoraConfig(**lora))


def _trainable(
    model: Any, export: CheckpointExport, first_values: Mapping[str, Tensor], name: str
) -> dict[str, Tensor]:
    """Return the trained parameters under the mirrored system's names, set to its first values."""
    import torch

    own = dict(model.named_parameters())
    wrong = sorted(set(export.trainable.values()) - set(own)) or sorted(set(first_values) ^ set(export.trainable))
    if wrong:
        _refuse(name, "every trained parameter must be named in both models", wrong)
    for parameter in own.values():
        parameter.requires_grad_(False)
    parameters = {ours: own[export.trainable[ours]].requires_grad_(True) for ours in first_values}
    with torch.no_grad():
        for ours, parameter in parameters.items():
            parameter.copy_(first_values[ours])
    return parameters


def _refuse(name: str, rule: str, names: Sequence[str]) -> None:
    raise SystemResolutionError(rule, where=name, got=", ".join(names[:5]) + (", …" if len(names) > 5 else ""))
