"""Batches as trainers have them: a step gets what `batch(index)` makes, and trains as with a dictionary of tensors."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader, TensorDataset

from harness.contract.schema import Arm, Workload
from harness.system import ranks
from harness.system.batches import leaves, structure_of, tensors_alone
from harness.system.batches import replaced as with_tensors
from harness.system.step_function import StepFunction, StepFunctionSystem
from harness.system.users_code import message_of

ROOT = Path(__file__).parents[3]
STEPS = 6
WORKLOAD = Workload(model="any", batch_size=8, seq_len=4, steps=STEPS)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


Plain = namedtuple("Plain", "x y")  # noqa: PYI024 - as users make them

# how a batch is made of two tensors, how a step takes it apart, and the tensors' names
STRUCTURES: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], tuple[Tensor, Tensor]], set[str]]] = {
    "dictionary": (lambda x, y: {"x": x, "y": y}, lambda b: (b["x"], b["y"]), {"x", "y"}),
    "mapping": (lambda x, y: UserDict(x=x, y=y), lambda b: (b["x"], b["y"]), {"x", "y"}),
    "tuple": (lambda x, y: (x, y), lambda b: (b[0], b[1]), {"0", "1"}),
    "list": (lambda x, y: [x, y], lambda b: (b.pop(0), b.pop(0)), {"0", "1"}),
    "named tuple": (Pair, lambda b: (b.x, b.y), {"0", "1"}),
    "named tuple of collections": (Plain, lambda b: (b.x, b.y), {"0", "1"}),
    "tensor": (lambda x, y: torch.cat([x, y], 1), lambda b: (b[:, :4], b[:, 4:]), {"batch"}),
    "dictionary in a tuple": (lambda x, y: ({"x": x}, y), lambda b: (b[0]["x"], b[1]), {"0.x", "1"}),
    "list in a dictionary": (lambda x, y: {"x": [x, y]}, lambda b: (b["x"][0], b["x"][1]), {"x.0", "x.1"}),
    "something absent": (lambda x, y: (x, None, y), lambda b: (b[0], b[2] if b[1] is None else b[0]), {"0", "2"}),
}


class Regression(StepFunctionSystem):
    """A step on batches of one structure."""

    def __init__(self, structure: str) -> None:
        self.make, self.take, _ = STRUCTURES[structure]
        self.types: set[type] = set()

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        torch.manual_seed(workload.seed)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch: Any) -> Tensor:
            self.types.add(type(batch))
            x, y = self.take(batch)
            optimizer.zero_grad()
            loss: Tensor = (model(x) - y).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        def batch(index: int) -> Any:
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
            return self.make(x, x.sum(1, keepdim=True))

        return StepFunction(step, batch, lambda: dict(model.named_parameters()))


def losses(system: StepFunctionSystem, capture: str) -> list[float]:
    with system.open(WORKLOAD, Arm.model_validate({"capture": capture})) as run:
        return [float(run.step(index)) for index in range(STEPS)]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_step_trains_the_same_for_every_batch_structure(structure: str) -> None:
    system = Regression(structure)
    kind = type(system.make(torch.ones(1, 1), torch.ones(1, 1)))
    expected = losses(Regression("dictionary"), "none")
    assert expected[-1] < expected[0]
    assert losses(system, "none") == losses(system, "step") == expected
    assert system.types - {FakeTensor} == {dict if kind is UserDict else kind}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_tensors_of_every_batch_structure_have_names(structure: str) -> None:
    with Regression(structure).open(WORKLOAD, Arm()) as run:
        assert set(run.inputs()) == STRUCTURES[structure][2]


def test_replacing_a_tensor_leaves_the_rest_of_the_batch_unchanged() -> None:
    assert with_tensors(({"ids": 1, "text": "a"}, [2]), {"0.ids": 5}) == ({"ids": 5, "text": "a"}, [2])
    assert with_tensors(1, {"batch": 2}) == 2


def test_non_tensors_are_left_out_of_dictionaries_but_kept_in_tuples() -> None:
    x = torch.ones(1)
    kept = tensors_alone({"x": x, "text": "a", "in": [x, {"x": x, "n": 1}], "names": ["a"]})
    assert [name for name, _ in leaves(kept)] == ["x", "in.0", "in.1.x"]
    assert [value for _, value in leaves(tensors_alone((x, "a")))] == [x, "a"]


def test_the_form_of_a_batch_ignores_key_order_and_distinguishes_lists_from_tuples() -> None:
    assert structure_of({"a": 1, "b": (2,)}).form() == structure_of({"b": (5,), "a": 0}).form()
    assert structure_of({"a": 1, "b": (2,)}).form() != structure_of({"a": 1, "b": [2]}).form()
    assert structure_of((1, None)).form() != structure_of((1, 2)).form()


def test_ranks_share_the_rows_of_any_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    whole = (torch.arange(4), {"mask": torch.arange(4), "table": torch.arange(3), "n": torch.tensor(7)})
    first, others = ranks.shared(lambda _index: whole, 4)(0)
    assert first.tolist() == [2, 3]
    assert {name: tensor.tolist() for name, tensor in others.items()} == {
        "mask": [2, 3],
        "table": [0, 1, 2],
        "n": 7,
    }


COMPILED = """
import torch
from torch import nn

from harness.contract.schema import Arm, Workload
from harness.system.made_step import MadeStepSystem


class Dropped(MadeStepSystem):
    def build(self, workload, arm):
        torch.manual_seed(workload.seed)
        model, drop = nn.Linear(4, 1), nn.Dropout(0.5)

        def step(batch):
            x, y = batch
            model.zero_grad()
            loss = (model(drop(x)) - y).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(0.1 * parameter.grad)
            return loss.detach()

        return step, lambda index: (torch.ones(8, 4) * index, torch.ones(8, 1)), model


for settings in ({}, {"compile": True}):
    with Dropped().open(Workload(model="any", batch_size=8, seq_len=4, steps=2), Arm.model_validate(settings)) as run:
        print(*[float(run.step(index)) for index in (1, 2)])
"""


@pytest.mark.slow
def test_a_compiled_step_gets_its_batch_and_draws_like_the_plain_step() -> None:
    """The test starts its own process, because the compiler for CPUs depends on where setuptools was imported from."""
    command = [sys.executable, "-W", "ignore", "-c", COMPILED]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    plain, compiled = ([float(loss) for loss in line.split()] for line in printed[-2:])
    assert compiled == pytest.approx(plain, rel=1e-5)
    assert plain[0] != plain[1]


class Functional(StepFunctionSystem):
    """Parameters in a dictionary and no optimizer; a loss among other things."""

    def __init__(self, *, in_place: bool) -> None:
        self.in_place = in_place

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        weights = {"weight": torch.zeros(4, 1), "bias": torch.zeros(1)}

        def loss_of(weights: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
            return (batch[0] @ weights["weight"] + weights["bias"] - batch[1]).square().mean()

        def step(batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
            gradients, loss = torch.func.grad_and_value(loss_of)(weights, batch)
            for name, gradient in gradients.items():
                updated = weights[name] - 0.1 * gradient
                if self.in_place:
                    weights[name].copy_(updated)
                else:
                    weights[name] = updated
            return {"loss": loss, "rows": 8}

        return step, Regression("tuple").build(workload, arm).batch, weights


def test_parameters_in_a_dictionary_and_a_loss_in_a_tuple_are_accepted() -> None:
    plain, captured = (losses(Functional(in_place=True), capture) for capture in ("none", "step"))
    assert plain == captured
    assert plain[-1] < plain[0]


class Loaded(Regression):
    """Batches of a loader in place of a function of the index."""

    def __init__(self, loader: Any) -> None:
        super().__init__("tuple")
        self.loader = loader

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        return replace(super().build(workload, arm), batch=self.loader(torch.Generator().manual_seed(1)))


PAIRS = TensorDataset(torch.arange(48.0).view(12, 4) / 48, torch.arange(12.0).view(12, 1) / 12)
LOADERS: dict[str, Callable[[torch.Generator], Any]] = {
    "shuffled": lambda own: DataLoader(PAIRS, 4, shuffle=True, generator=own),
    "in order": lambda _own: DataLoader(PAIRS, 4),
    "a list": lambda _own: [PAIRS[:4], PAIRS[4:8], PAIRS[8:]],
    "an endless generator": lambda _own: (PAIRS[first : first + 4] for first in itertools.cycle([0, 4, 8])),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_in_place_of_a_function_is_read_in_its_order_epoch_after_epoch(name: str) -> None:
    loader = LOADERS[name](torch.Generator().manual_seed(1))
    read = [x for x, _ in itertools.islice(itertools.chain(loader, loader), STEPS)]
    with Loaded(LOADERS[name]).open(WORKLOAD, Arm()) as run:
        for index in range(STEPS):
            run.step(index)
            assert torch.equal(run.inputs()["0"], read[index])
    assert losses(Loaded(LOADERS[name]), "step") == losses(Loaded(LOADERS[name]), "none")


def test_a_loader_that_shuffles_by_the_processs_generator_is_refused() -> None:
    with pytest.raises(Exception, match=r"must shuffle with its own generator.*DataLoader that shuffles with the"):
        Loaded(lambda _own: DataLoader(PAIRS, 4, shuffle=True)).open(WORKLOAD, Arm())


def test_a_loader_that_ends_after_one_epoch_is_reported() -> None:
    with Loaded(lambda _own: iter([PAIRS[:4], PAIRS[4:8]])).open(WORKLOAD, Arm()) as run:
        run.step(0)
        run.step(1)
        with pytest.raises(Exception, match=r"epoch after epoch; found no batch in epoch 1; return the loader itself"):
            run.step(2)


def test_parameters_replaced_by_new_tensors_are_refused() -> None:
    with Functional(in_place=False).open(WORKLOAD, Arm()) as run:
        assert set(run.parameters()) == {"weight", "bias"}
        run.step(0)
        with pytest.raises(Exception, match="found different tensors under `weight`, `bias`") as raised:
            run.parameters()
    assert "update the tensors in place" in message_of(raised.value)
