"""The adapter that lets the harness test the reference trainer. Describing the trainer imports no torch."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harness.system.protocol import (
    CaptureRecord,
    KernelCases,
    KernelInventory,
    KernelLedger,
    NotAvailable,
    SystemDescription,
)
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.errors import ReferenceImplError
from reference_impl.faults import BETWEEN, FAULTS, KERNELS, PLAN, REPLAY, STEP, change_of, plant, plant_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from harness.system.protocol import Arm, Workload
    from reference_impl.between_steps import BetweenSteps
    from reference_impl.cuda_graph import CapturingTrainer
    from reference_impl.prewarm import RunKernels
    from reference_impl.trainer import Trainer

Scalar = bool | int | float | str
ARM_OPTIONS: dict[str, Sequence[Scalar] | type] = {
    "learning_rate": float,
    "clip_mode": ("fused", "synchronizing"),
    "clip_scope": ("per_layer", "global"),
    "max_norm": float,
    "weights": ("nf4", "nf4_dense", "full"),
    "dtype": ("auto", "bfloat16", "float32"),
    "gemm": ("cublas", "tiled", "fp16", "bf16"),
    "precision": ("dtype", "fp8"),
    "adapters": (True, False),
    "seed": int,
    "micro_batches": int,
}
# Options of an arm that are not settings of the trainer. `prewarm`: if True, all kernels are loaded before the weights.
RUN_OPTIONS: dict[str, Sequence[Scalar] | type] = {"prewarm": (True, False)}
WORKLOAD_OPTIONS: dict[str, Sequence[Scalar] | type] = {
    "rank": int,
    "alpha": float,
    "warmup_steps": int,
    "beta1": float,
    "beta2": float,
    "eps": float,
    "weight_decay": float,
    "loss_chunk": int,
}


class QLoRASystem:
    """The QLoRA trainer of this package, with plain or captured steps, as a system that the harness tests."""

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name="reference QLoRA trainer",
            summary="Qwen2-style decoder in NF4, trains LoRA on q and v and the norms' gains; captured or plain",
            models=tuple(MODEL_PRESETS),
            arm_options=ARM_OPTIONS | RUN_OPTIONS,
            workload_options=WORKLOAD_OPTIONS,
            capabilities=frozenset(
                {
                    "inputs",
                    "parameters",
                    "state",
                    "gradients",
                    "gradient_norms",
                    "metrics",
                    "moments",
                    "capture",
                    "skipped_steps",
                    "kernel_cases",
                    "kernels",
                    "checkpoint",
                    "resume",
                    "evaluate",
                }
            ),
            captures=frozenset({"none", "step", "backward"}),
            faults={name: fault.description for name, fault in FAULTS.items()},
        )

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> QLoRARun:
        try:
            config = train_config(workload, arm, data, model_directory)
            prewarm = bool(arm.settings().get("prewarm", False))
            return QLoRARun(config, _schedule(workload), arm.capture, fault, prewarm=prewarm)
        except ReferenceImplError as error:
            if error.argument == "device":
                raise NotAvailable(str(error)) from error
            raise

    def cross_compiled(
        self,
        workload: Workload,
        arm: Arm,
        target: str,
        *,
        with_used: bool = True,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> KernelInventory:
        """Return the kernels that a prewarm plans, compiled for the architecture `target`. No GPU is needed.

        with_used: also return the kernels that a step launches.
        """
        from reference_impl.prewarm import RunKernels

        kernels = RunKernels(train_config(workload, arm, data, model_directory), _schedule(workload))
        plant(fault, PLAN, kernels)
        return kernels.cross_compiled(target, with_used=with_used)

    def checkpoint(self, workload: Workload, folder: Path, *, model_directory: str | None = None) -> Path:
        """Return the directory of the workload's weights. Random weights are first written below `folder`."""
        from harness.system.protocol import Arm
        from reference_impl.export import write_checkpoint
        from reference_impl.trainer import checkpoint_directory, model_source, resolve_device

        config = train_config(workload, Arm(), None, model_directory)
        directory = checkpoint_directory(config)
        if directory is not None:
            return directory
        shape, source, _ = model_source(config, resolve_device(config.device))
        return write_checkpoint(shape, source, folder / str(config.model))

    def kernel_cases(self, workload: Workload, arm: Arm, *, fault: str | None = None) -> KernelCases:
        """Return the comparisons of kernels at the shapes of this workload. No weights are loaded."""
        from reference_impl.kernel_cases import ReferenceKernelCases

        try:
            return ReferenceKernelCases(train_config(workload, arm, None, None), change_of(fault, KERNELS))
        except ReferenceImplError as error:
            if error.argument == "device":
                raise NotAvailable(str(error)) from error
            raise


def train_config(workload: Workload, arm: Arm, data: str | None, model_directory: str | None) -> TrainConfig:
    """Return the trainer's configuration for each rank of an arm. The arm's setting `seed` replaces the workload's."""
    settings = {"seed": workload.seed} | _known(_trainer_settings(arm), ARM_OPTIONS, "arm setting")
    return TrainConfig.preset(
        model_directory or workload.model,
        batch_size=workload.batch_size // arm.ranks,
        seq_len=_schedule(workload)[0],
        steps=workload.steps,
        data=data,
        device=workload.needs.device or "auto",
        **_known(workload.options, WORKLOAD_OPTIONS, "workload option"),
        **settings,
    )


def _trainer_settings(arm: Arm) -> dict[str, Scalar]:
    return {name: value for name, value in arm.settings().items() if name not in RUN_OPTIONS}


def _known(given: Mapping[str, Any], known: Mapping[str, object], what: str) -> dict[str, Any]:
    for name in given:
        if name not in known:
            raise ReferenceImplError(name, f"unknown {what}", f"known ones: {', '.join(known)}")
    return {name: float(value) if known[name] is float else value for name, value in given.items()}


def _schedule(workload: Workload) -> tuple[int, ...]:
    return tuple(workload.seq_len) if isinstance(workload.seq_len, list) else (workload.seq_len,)


class QLoRARun:
    """One opened trainer. schedule: sequence lengths that take turns; step `index` has length `schedule[index %
    len(schedule)]`."""

    def __init__(
        self,
        config: TrainConfig,
        schedule: Sequence[int],
        capture: str,
        fault: str | None,
        *,
        prewarm: bool = False,
    ) -> None:
        from reference_impl.prewarm import RunKernels

        self.schedule = tuple(schedule)
        self._counted: Mapping[str, Scalar] | None = None
        self.kernels: RunKernels = RunKernels(config, self.schedule)
        plant(fault, PLAN, self.kernels)
        try:
            self.kernels.open(prewarm=prewarm)
            self._open_trainer(config, capture)
            self.kernels.uploaded()
            self._plant(fault)
        except BaseException:
            self.kernels.close()
            raise

    def _open_trainer(self, config: TrainConfig, capture: str) -> None:
        from reference_impl.between_steps import BetweenSteps
        from reference_impl.cuda_graph import CapturingTrainer
        from reference_impl.data_parallel import Ranks
        from reference_impl.trainer import Trainer

        self.trainer: Trainer = Trainer(config, Ranks.of_this_process())
        # Create this tensor once. A copy from the host in every step would be a host sync.
        self._max_norm = self.trainer.clip.norms.new_full((), config.max_norm)
        self.capturing: CapturingTrainer = CapturingTrainer(self.trainer, capture)
        self.between: BetweenSteps = BetweenSteps(self.capturing)

    def _plant(self, fault: str | None) -> None:
        plant(fault, STEP, self.trainer)
        plant(fault, REPLAY, self.capturing)
        plant(fault, BETWEEN, self.between)
        plant_kernels(fault, self.capturing)

    def step(self, index: int) -> Tensor:
        self.select_shape(index)
        return self.capturing.step(index)

    def select_shape(self, index: int) -> None:
        self.trainer.set_shape(self.schedule[index % len(self.schedule)])

    def facts(self) -> Mapping[str, Scalar]:
        from reference_impl.trainer import checkpoint_directory

        trainer = self.trainer
        model = trainer.model_config
        return {
            "device": str(trainer.device),
            **self._precision(),
            "layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "trainable_parameters": trainer.trainable.flat.numel(),
            "text_digest": trainer.data.digest,
            "clip_mode": trainer.config.clip_mode,
            "clip_scope": trainer.config.clip_scope,
            "max_norm": trainer.config.max_norm,
            "learning_rate": trainer.config.learning_rate,
            "rank": trainer.config.rank,
            "random_weights": checkpoint_directory(trainer.config) is None,
        }

    def _precision(self) -> Mapping[str, Scalar]:
        """Return facts about the number formats. They are computed only once, because this takes a second for 28
        layers."""
        if self._counted is None:
            from reference_impl.fp8_record import precision_facts

            self._counted = precision_facts(self.trainer)
        return self._counted

    def inputs(self) -> Mapping[str, Tensor]:
        return {"tokens": self.trainer.static.tokens, "targets": self.trainer.static.targets}

    def parameters(self) -> Mapping[str, Tensor]:
        return self.trainer.parameters()

    def frozen(self) -> Mapping[str, Tensor]:
        return self.trainer.frozen_tensors()

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return AdamW's moments as flat tensors, AdamW's counters, and the learning rate, by kind and name.

        A step uses no random generator, so no generator's state is returned.
        """
        optimizer = self.trainer.optimizer
        return {"optimizer": {**optimizer.state_tensors(), "learning_rate": optimizer.learning_rate}}

    def gradients(self) -> Mapping[str, Tensor]:
        return self.trainer.gradients()

    def moments(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return AdamW's moments as views of the flat buffers, by kind of moment and name of the parameter."""
        optimizer, slots = self.trainer.optimizer, self.trainer.trainable.slots
        flat = {"exp_avg": optimizer.exp_avg, "exp_avg_sq": optimizer.exp_avg_sq}
        return {kind: {slot.name: slot.view(each) for slot in slots} for kind, each in flat.items()}

    def gradient_norms(self) -> Mapping[str, Tensor]:
        norms, _ = self.trainer.gradient_norms()
        return {"before": norms, "max_norm": self._max_norm}

    def metrics(self) -> Mapping[str, Tensor]:
        """Return the L2 norm of all gradients before clipping, and the learning rate of the last step."""
        norms, _ = self.trainer.gradient_norms()
        return {"gradient_norm": norms.norm(), "learning_rate": self.trainer.optimizer.learning_rate}

    def gradient_groups(self) -> dict[str, list[str]]:
        slots = self.trainer.trainable.slots
        if self.trainer.clip.scope == "global":
            return {"all": [slot.name for slot in slots]}
        groups: dict[str, list[str]] = {}
        for slot in slots:
            groups.setdefault(f"layers.{slot.layer}", []).append(slot.name)
        return groups

    def capture_record(self) -> CaptureRecord:
        return self.capturing.record()

    def step_body(self) -> Callable[[], Tensor]:
        return self.trainer.body

    def state_tensors(self) -> Mapping[str, Tensor]:
        return self.trainer.state_tensors()

    def skipped_steps(self) -> int:
        return int(self.trainer.optimizer.skipped.item())

    def save(self, path: Path) -> None:
        self.between.save(path)

    def load(self, path: Path) -> None:
        self.between.load(path)

    def evaluate(self) -> Tensor:
        return self.between.evaluate()

    def forget_captures(self) -> None:
        self.capturing.forget_captures()

    def clip_kernels(self) -> Mapping[str, Mapping[int, int]]:
        """Return the CUDA name of the kernel that scales gradients, the address of the table of tensors that it reads,
        and the number of tensors in this table that have elements, as {name: {address: number}}."""
        plan = self.trainer.clip.plan
        return {"_scale_apply_kernel": {plan.starts.data_ptr(): sum(span.size > 0 for span in plan.spans)}}

    def kernel_inventory(self) -> KernelInventory:
        return self.kernels.inventory()

    def kernel_ledger(self) -> KernelLedger:
        return self.kernels.ledger()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.capturing.close()
        self.kernels.close()
