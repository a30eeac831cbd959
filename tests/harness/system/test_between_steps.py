"""Evaluation between steps, and going on from what was saved: right ones leave training alone, wrong ones show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.adapter_checks import AdapterError
from harness.system.described import describe
from harness.system.step_function import StepFunction, StepFunctionSystem
from harness.system.users_code import return_place

WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=12)
CAPTURES = ["none", "step"]


class Trainer(StepFunctionSystem):
    """Trains with momentum and dropout; `wrong` says what its evaluation or its checkpoint forgets."""

    name = "trainer"

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.evaluations = 0

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        torch.manual_seed(workload.seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        def step(batch: dict[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(batch["x"]) - batch["x"].sum(1, keepdim=True)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        def batch(index: int) -> dict[str, Tensor]:
            return {"x": torch.randn(16, 4, generator=torch.Generator().manual_seed(index))}

        def evaluate() -> None:
            self.evaluations += 1
            if self.wrong != "mode":
                model.eval()
            with torch.no_grad():
                model(batch(1000)["x"])
            model.train()

        def save(path: Path) -> None:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "draws": torch.get_rng_state()}
            torch.save({name: each for name, each in state.items() if name != self.wrong}, path)

        def load(path: Path) -> None:
            state: dict[str, Any] = torch.load(path)
            model.load_state_dict(state["model"])
            if "optimizer" in state:
                optimizer.load_state_dict(state["optimizer"])
            if "draws" in state:
                torch.set_rng_state(state["draws"])

        return StepFunction(step, batch, lambda: dict(model.named_parameters()), dict, evaluate, save, load)


class Without(Trainer):
    """Hands over neither evaluation nor checkpoint."""

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        whole = super().build(workload, arm)
        return StepFunction(whole.step, whole.batch, whole.parameters)


def trained(system: StepFunctionSystem, **settings: Any) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of every step, and all of the state at the end."""
    torch.manual_seed(WORKLOAD.seed)
    with system.open(WORKLOAD, Arm.model_validate({"capture": "none", **settings})) as run:
        losses = [float(run.step(index)) for index in range(WORKLOAD.steps)]
        state = {f"{kind} {name}": each.clone() for kind, found in run.state().items() for name, each in found.items()}
        return losses, {**state, **{name: each.clone() for name, each in run.parameters().items()}}


def differing(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("setting", [{"evaluate_every": 3}, {"resume_at": 5}], ids=["evaluate", "resume"])
def test_a_right_one_leaves_training_alone(setting: dict[str, int], capture: str) -> None:
    losses, state = trained(Trainer(), capture=capture)
    with_it, state_with_it = trained(Trainer(), capture=capture, **setting)
    assert with_it == losses
    assert differing(state_with_it, state) == []


def test_evaluation_comes_between_steps_and_not_before_the_first() -> None:
    system = Trainer()
    trained(system, evaluate_every=3)
    assert system.evaluations == 3  # before steps 3, 6 and 9 of 12


WRONG = [
    ("mode", {"evaluate_every": 3}, 3),
    ("optimizer", {"resume_at": 5}, 6),  # the loss of step 5 is that of the loaded parameters
    ("draws", {"resume_at": 5}, 5),
]


@pytest.mark.parametrize(("wrong", "setting", "first"), WRONG, ids=[name for name, _, _ in WRONG])
def test_what_is_forgotten_shows_from_that_step_on(wrong: str, setting: dict[str, int], first: int) -> None:
    losses, _ = trained(Trainer())
    with_it, _ = trained(Trainer(wrong), **setting)
    assert next(index for index, pair in enumerate(zip(losses, with_it, strict=True)) if pair[0] != pair[1]) == first


@pytest.mark.parametrize(
    ("setting", "rule", "found"),
    [
        ({"evaluate_every": 3}, "an arm with `evaluate_every` needs `evaluate` of what build returns", "no `evaluate`"),
        (
            {"resume_at": 3},
            "an arm with `resume_at` needs `save` and `load` of what build returns",
            "no `save` and no `load`",
        ),
    ],
)
def test_a_setting_without_its_functions_is_refused(setting: dict[str, int], rule: str, found: str) -> None:
    with pytest.raises(AdapterError) as caught:
        trained(Without(), **setting)
    assert (caught.value.where, caught.value.rule, caught.value.got) == (return_place(Without.build), rule, found)


class OwnSetting(Without):
    """Reads a setting of that name itself."""

    arm_options = {"evaluate_every": int}  # noqa: RUF012 - as users write it


def test_a_setting_that_the_system_has_itself_is_its_own() -> None:
    losses, _ = trained(Without())
    assert trained(OwnSetting(), evaluate_every=3)[0] == losses


@pytest.mark.parametrize("setting", ["evaluate_every", "resume_at"])
def test_steps_are_counted_from_one(setting: str) -> None:
    with pytest.raises(AdapterError, match=f"an arm's `{setting}` counts steps from 1; found {setting}: 0"):
        trained(Trainer(), **{setting: 0})


def test_every_step_function_system_says_that_it_knows_them() -> None:
    options = describe("step_function_systems:Regression").arm_options
    assert (options["evaluate_every"], options["resume_at"]) == (int, int)
