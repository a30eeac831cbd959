"""What the harness drives trains as the library itself does, untouched: losses and final weights, bit for bit."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import pytest
import torch
from budget import slow_but
from needed_programs import absent
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from harness.contract.schema import Arm, Workload
from harness.extras.trainers.lightning_trainer import LightningSystem
from harness.extras.trainers.made_trainer import MadeTrainerSystem
from harness.system.adapter_checks import AdapterError
from harness.system.protocol import HasCapture
from harness.system.replay.generators import seed_all
from harness.system.resolve import resolve

STEPS = 12
DRIVES = {"loop": {}, "steps": {"drive": "steps"}}


class Trained(NamedTuple):
    losses: list[float]
    weights: dict[str, Tensor]


def workload(name: str) -> Workload:
    return Workload(model="any", batch_size=16 if name == "lightning_module" else 8, seq_len=32, steps=STEPS)


def by_transformers(train: Any) -> Trained:
    """`trainer.train()` of a trainer that nobody has touched, ended by a callback; it logs each loss."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= STEPS

    trainer = train.make_trainer(train.make_model())
    trainer.args.logging_steps = trainer.state.logging_steps = 1
    trainer.add_callback(Stop())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Trained(losses, dict(trainer.model.named_parameters()))


def by_lightning(train: Any) -> Trained:
    """`trainer.fit()`, which hands each loss to a callback."""
    import pytorch_lightning

    losses: list[float] = []

    class Keep(pytorch_lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *arguments: Any) -> None:
            losses.append(outputs["loss"].item())

    trainer, module, loader = train.make_fit(steps=STEPS, quiet=True)
    trainer.callbacks.append(Keep())
    trainer.fit(module, loader)
    return Trained(losses, dict(module.named_parameters()))


LIBRARIES: dict[str, tuple[str, Callable[[Any], Trained]]] = {
    "transformers_trainer": ("transformers", by_transformers),
    "trl_sft": ("trl", by_transformers),
    "lightning_module": ("pytorch_lightning", by_lightning),
}


def driven(name: str, settings: dict[str, Any]) -> Trained:
    contract = (Path(__file__).parents[2] / "examples" / name / "contract.yaml").read_text()
    [system] = [line.removeprefix("system: ") for line in contract.splitlines() if line.startswith("system: ")]
    seed_all(0)
    with resolve(system).open(workload(name), Arm.model_validate(settings)) as run:
        losses = [run.step(index).item() for index in range(STEPS)]
        assert isinstance(run, HasCapture)
        assert run.capture_record().requested == ("capture" in settings)
        weights = {key: tensor.detach().clone() for key, tensor in run.parameters().items()}  # type: ignore[attr-defined]
    return Trained(losses, weights)


@pytest.fixture(scope="module")
def untouched() -> Callable[[str], Trained]:
    known: dict[str, Trained] = {}

    def of(name: str) -> Trained:
        module, train = LIBRARIES[name]
        if importlib.util.find_spec(module) is None:
            absent(f"the extra `examples` ({module})")
        if name not in known:
            seed_all(0)
            known[name] = train(importlib.import_module(f"examples.{name}.train"))
        return known[name]

    return of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("drive", sorted(DRIVES))
@pytest.mark.parametrize("name", slow_but(["lightning_module"], sorted(LIBRARIES)))
def test_a_trainer_driven_by_the_harness_trains_as_the_library_does(
    name: str, drive: str, untouched: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected, found = untouched(name), driven(name, DRIVES[drive])
    assert found.losses == expected.losses
    assert len(set(expected.losses)) == STEPS
    assert [key for key, weight in expected.weights.items() if not torch.equal(weight, found.weights[key])] == []


class Made(MadeTrainerSystem):
    """The trainer of a script, as a function of a project makes it."""

    def build(self, workload: Workload, arm: Arm) -> Any:
        train = importlib.import_module("examples.transformers_trainer.train")
        return train.make_trainer(train.make_model())


def made(**settings: Any) -> Trained:
    seed_all(0)
    arm = Arm.model_validate({"capture": "none"} | settings)
    with Made().open(workload("transformers_trainer"), arm) as run:
        begun = {key: tensor.detach().clone() for key, tensor in run.parameters().items()}  # type: ignore[attr-defined]
        losses = [run.step(index).item() for index in range(STEPS)]
        moved = {key: tensor - begun[key] for key, tensor in run.parameters().items()}  # type: ignore[attr-defined]
    return Trained(losses, moved)


@pytest.mark.filterwarnings("ignore")
def test_a_transformers_trainer_made_by_an_adapter_trains_like_the_library(
    untouched: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert made().losses == untouched("transformers_trainer").losses


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{"arguments": "learning_rate=0.0"}, {"trains": False}])
def test_an_arm_can_change_the_arguments_of_a_trainer_or_undo_its_updates(
    settings: dict[str, Any], untouched: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected, found = untouched("transformers_trainer"), made(**settings)
    assert found.losses[0] == expected.losses[0]
    assert found.losses[1:] != expected.losses[1:]
    assert [key for key, moved in found.weights.items() if moved.count_nonzero()] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("bf17=True", r"found `bf17`; did you mean 'bf16'"),
        ("bf16=", r"written as in a call, with names and literals; found 'bf16='"),
        ("'out'", r"found \"'out'\": an argument without a name"),
        ("optim=chosen", r"written as in a call, with names and literals"),
    ],
)
def test_unknown_trainer_arguments_are_refused(
    arguments: str, found: str, untouched: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    untouched("transformers_trainer")
    with pytest.raises(AdapterError, match=found):
        made(arguments=arguments)


@pytest.mark.parametrize(
    ("built", "settings", "found"),
    [
        (
            (1, 2, 3),
            {},
            "build must return a trainer of transformers, or Lightning's trainer with its module and its data loader",
        ),
        (
            None,
            {"arguments": "bf16=True"},
            "found bf16, for a trainer whose TrainingArguments were created outside of the function",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_non_trainer_or_a_trainer_with_outside_arguments_is_refused(
    built: Any,
    settings: dict[str, Any],
    found: str,
    untouched: Callable[[str], Trained],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    untouched("transformers_trainer")
    there = Made().build(workload("transformers_trainer"), Arm(capture="none")) if built is None else built
    monkeypatch.setattr(Made, "build", lambda *_: there)
    with pytest.raises(AdapterError, match=found):
        made(**settings)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("drive", sorted(DRIVES))
def test_a_loader_of_lists_trains_with_the_losses_of_a_loader_of_dictionaries(
    drive: str, untouched: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most examples of Lightning have such lists, because `TensorDataset` makes them."""
    monkeypatch.chdir(tmp_path)
    expected = untouched("lightning_module")

    class System(LightningSystem):
        def fit(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
            trainer, module, loader = importlib.import_module("examples.lightning_module.train").make_fit(steps=STEPS)
            values, read = loader.dataset.values, module.training_step

            def training_step(_module: Any, batch: list[Tensor], batch_index: int) -> Any:
                return read({"past": batch[0], "next": batch[1]}, batch_index)

            module.training_step = MethodType(training_step, module)
            pairs, generator = TensorDataset(values[:, :-1], values[:, 1:]), torch.Generator().manual_seed(0)
            return trainer, module, DataLoader(pairs, 16, shuffle=True, drop_last=True, generator=generator)

    seed_all(0)
    with System().open(workload("lightning_module"), Arm.model_validate(DRIVES[drive])) as run:
        assert [run.step(index).item() for index in range(STEPS)] == expected.losses
        assert set(run.inputs()) == {"0", "1"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_captured_trainer_trains_as_the_library_does(
    untouched: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, a recording of transformers' steps, with learning rate schedule and clip, is replayed."""
    monkeypatch.chdir(tmp_path)
    expected = untouched("transformers_trainer")
    found = driven("transformers_trainer", {"drive": "steps", "capture": "step"})
    assert found.losses == expected.losses
    assert [key for key, weight in expected.weights.items() if not torch.equal(weight, found.weights[key])] == []


@pytest.mark.filterwarnings("ignore")
def test_gradients_that_are_accumulated_are_refused(untouched: Callable[[str], Trained]) -> None:
    from harness.extras.trainers.driven_trainer import UnsuitableTrainerError
    from harness.extras.trainers.transformers_trainer import DrivenTransformersTrainer

    untouched("transformers_trainer")
    train = importlib.import_module("examples.transformers_trainer.train")
    trainer = train.make_trainer(train.make_model())
    trainer.args.gradient_accumulation_steps = 2
    with pytest.raises(UnsuitableTrainerError, match=r"found gradient_accumulation_steps=2; compare the training with"):
        DrivenTransformersTrainer(trainer)


@pytest.mark.filterwarnings("ignore")
def test_a_loader_that_shuffles_by_the_processs_generator_is_refused_step_by_step(
    untouched: Callable[[str], Trained],
) -> None:
    from torch.utils.data import DataLoader

    from harness.extras.trainers.driven_trainer import UnsuitableTrainerError
    from harness.extras.trainers.lightning_trainer import DrivenLightningTrainer

    untouched("lightning_module")
    train = importlib.import_module("examples.lightning_module.train")
    trainer, module, loader = train.make_fit(quiet=True)
    driven_trainer = DrivenLightningTrainer(trainer, module, DataLoader(loader.dataset, batch_size=4, shuffle=True))
    with pytest.raises(UnsuitableTrainerError, match=r"RandomSampler: .* found .* generator; use DataLoader"):
        driven_trainer.run("steps", "none", 0)
    driven_trainer.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "attributes", "found"),
    [
        ({}, {"automatic_optimization": False}, r"a module that optimizes itself \(`automatic_optimization=False`\);"),
        ({"accumulate_grad_batches": 2}, {}, r"accumulate_grad_batches=2;"),
        ({}, {"automatic_optimization": False, "two": True}, r".*`automatic_optimization=False`\) and 2 optimizers;"),
    ],
)
def test_a_lightning_feature_that_the_step_cannot_repeat_is_refused_but_runs_in_the_loop(
    settings: dict[str, Any],
    attributes: dict[str, Any],
    found: str,
    untouched: Callable[[str], Trained],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    untouched("lightning_module")
    system = own_steps(settings, attributes)
    with pytest.raises(Exception, match=rf"one update of one optimizer for each batch.*found {found}"):
        system.open(workload("lightning_module"), Arm.model_validate(DRIVES["steps"]))
    with system.open(workload("lightning_module"), Arm()) as run:
        assert len({run.step(index).item() for index in range(4)}) == 4
        moments = run.state()["optimizer"]
        assert len([name for name in moments if name.endswith("exp_avg")]) == 6  # of both, where there are two


def own_steps(settings: dict[str, Any], attributes: dict[str, Any]) -> LightningSystem:
    """Lightning's example, whose module may make its updates itself, by one optimizer or two."""
    import pytorch_lightning

    train = importlib.import_module("examples.lightning_module.train")

    class Own(train.Forecast):  # type: ignore[name-defined,misc]
        automatic_optimization = attributes.get("automatic_optimization", True)

        def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
            loss: Tensor = super().training_step(batch, batch_index)
            if not self.automatic_optimization:
                made = self.optimizers()
                optimizers = made if isinstance(made, list) else [made]
                for optimizer in optimizers:
                    optimizer.zero_grad()
                self.manual_backward(loss)
                for optimizer in optimizers:
                    optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            split = [[self.model], [self.head]] if attributes.get("two") else [[self.model, self.head]]
            return [torch.optim.Adam([p for each in part for p in each.parameters()]) for part in split]

    class System(LightningSystem):
        def fit(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
            loader = train.make_fit(steps=STEPS, quiet=True)[2]
            quiet = dict.fromkeys(
                ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
            )
            return pytorch_lightning.Trainer(max_steps=STEPS, **quiet, **settings), Own(), loader

    return System()


@pytest.mark.filterwarnings("ignore")
def test_a_batch_is_converted_to_the_trainers_precision(
    untouched: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    untouched("lightning_module")
    losses = []
    for drive in DRIVES.values():
        seed_all(0)
        system = own_steps({"precision": "64-true"}, {})
        with system.open(workload("lightning_module"), Arm.model_validate(drive)) as run:
            losses.append([run.step(index).item() for index in range(4)])
            assert {tensor.dtype for tensor in run.parameters().values()} == {torch.float64}
    assert losses[0] == losses[1]
