"""What user code keeps on a driven trainer and on its callbacks is state: watched, put back, and named."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from needed_programs import absent
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.extras.trainers.lightning_trainer import LightningSystem
from harness.extras.trainers.transformers_trainer import TransformersTrainerSystem
from harness.system.replay.generators import seed_all

ROOT = Path(__file__).parents[2]
STEPS = 4
WORKLOAD = Workload(model="any", batch_size=2, seq_len=8, steps=STEPS)
Loose = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def of(library: str, module: str) -> tuple[Any, Any]:
    """The library, and an example's script that trains by it."""
    if importlib.util.find_spec(library) is None:
        absent(f"the extra `examples` ({library})")
    return importlib.import_module(library), importlib.import_module(f"examples.{module}.train")


def loose_after(system: Any, **settings: Any) -> Loose:
    """Loose tensors of an arm's state after its last step."""
    seed_all(0)
    with system.open(WORKLOAD, Arm.model_validate(settings)) as run:
        for index in range(STEPS):
            run.step(index)
        record = run.capture_record()
        assert record.failure is None
        return {name: tensor.clone() for name, tensor in run.state()["tensors"].items()}


def averaging(change: Callable[[Any, Tensor], None]) -> TransformersTrainerSystem:
    """A Trainer that keeps an average of its losses on itself, and one of its weights on a callback."""
    transformers, train = of("transformers", "transformers_trainer")

    class Averaging(transformers.Trainer):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.average = torch.zeros(())

        def training_step(self, *arguments: Any, **options: Any) -> Tensor:
            loss: Tensor = super().training_step(*arguments, **options)
            change(self, loss.detach())
            return loss

    class Weights(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self.average = torch.zeros(())

        def on_step_end(self, *_arguments: Any, model: nn.Module, **_options: Any) -> None:
            self.average.lerp_(next(model.parameters()).detach().mean(), 0.1)

    class System(TransformersTrainerSystem):
        def trainer(self, workload: Workload, arm: Arm) -> Any:
            made = train.make_trainer(train.make_model(hidden=16, layers=1), workload.batch_size, workload.seq_len)
            own = Averaging(model=made.model, args=made.args, train_dataset=made.train_dataset)
            own.add_callback(Weights())
            return own

    return System()


def in_place(trainer: Any, loss: Tensor) -> None:
    trainer.average.lerp_(loss, 0.1)


def by_another_tensor(trainer: Any, loss: Tensor) -> None:
    trainer.average = 0.9 * trainer.average + 0.1 * loss


@pytest.mark.filterwarnings("ignore")
def test_an_average_on_a_trainer_is_compared() -> None:
    system = averaging(in_place)
    loop, steps = loose_after(system, drive="loop"), loose_after(system, drive="steps")
    captured = loose_after(system, drive="steps", capture="step")
    assert sorted(loop) == sorted(steps) == sorted(captured) == ["callbacks.Weights.0.average", "trainer.average"]
    assert loop["trainer.average"] == steps["trainer.average"] == captured["trainer.average"] > 0


@pytest.mark.filterwarnings("ignore")
def test_an_average_that_replays_do_not_update_ends_different_from_plain_steps() -> None:
    system = averaging(by_another_tensor)
    steps, captured = loose_after(system, drive="steps"), loose_after(system, drive="steps", capture="step")
    assert type(captured["trainer.average"]) is Tensor
    assert captured["trainer.average"] != steps["trainer.average"]


@pytest.mark.filterwarnings("ignore")
def test_driving_a_trainer_by_steps_does_not_run_the_callback_that_updates_an_average() -> None:
    name, system = "callbacks.Weights.0.average", averaging(in_place)
    assert loose_after(system, drive="loop")[name] != 0
    assert loose_after(system, drive="steps")[name] == 0


@pytest.mark.filterwarnings("ignore")
def test_averages_on_lightnings_module_trainer_and_callbacks_are_compared() -> None:
    lightning, train = of("pytorch_lightning", "lightning_module")

    class Weights(lightning.Callback):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self.average = torch.zeros(())

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            self.average.lerp_(module.head.bias.detach().mean(), 0.1)

    class Trainer(lightning.Trainer):  # type: ignore[name-defined, misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.average = torch.zeros(())

    class Module(train.Forecast):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__(width=4)
            self.average = torch.zeros(())

        def training_step(self, *arguments: Any) -> Tensor:
            loss: Tensor = super().training_step(*arguments)
            for holder in (self, self.trainer):
                holder.average.lerp_(loss.detach(), 0.1)
            return loss

    class System(LightningSystem):
        def fit(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
            trainer, _, loader = train.make_fit(0, workload.batch_size, workload.seq_len, quiet=True)
            options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
            own = Trainer(max_steps=trainer.max_steps, callbacks=[Weights()], enable_model_summary=False, **options)
            return own, Module(), loader

    loop, steps = loose_after(System(), drive="loop"), loose_after(System(), drive="steps")
    captured = loose_after(System(), drive="steps", capture="step")
    assert sorted(loop) == ["callbacks.Weights.0.average", "model.average", "trainer.average"]
    for name in loop:
        assert loop[name] == steps[name] == captured[name] != 0, name


HELD_BY_A_LOGGER = """
import logging, torch
from harness.system.replay.fake_step import FakeTensorsLeftError
from harness.system.replay.traced import TracedStep, fake_pass

weight, logger = torch.ones(2, requires_grad=True), logging.getLogger("kept")

def step():
    logger.last = weight.sum().detach()
    return logger.last

for executed in (lambda: fake_pass(step, dict, [step]), TracedStep(step, dict, roots=[step]).record):
    try:
        executed()
    except FakeTensorsLeftError as error:
        print(error)
"""


def test_a_fake_tensor_outside_the_searched_objects_is_an_error_naming_its_holder() -> None:
    """A fake tensor has no values.

    Here a logger of the standard library holds it, and such objects are not searched. The search for holders reads the
    whole heap several times, and a new process has a small one.
    """
    command = [sys.executable, "-c", HELD_BY_A_LOGGER]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.count("tensors without values in Logger.last;") == 2, printed
