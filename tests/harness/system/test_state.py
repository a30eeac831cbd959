"""Undoing a trial step: values, gradients, optimizer state and random numbers, in place."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from harness.system.replay.found_state import as_tensor, found_state, is_text, same
from harness.system.replay.generators import global_generators
from harness.system.replay.state import MOVED, StateError, StateGuard, StaticAddresses


def step(parameter: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (parameter * torch.rand(3)).square().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def parameter_and(
    optimizer: Callable[..., torch.optim.Optimizer], **settings: Any
) -> tuple[Tensor, torch.optim.Optimizer]:
    parameter = nn.Parameter(torch.ones(3))
    return parameter, optimizer([parameter], lr=0.1, **settings)


def test_an_unlisted_parameter_is_restored_if_an_optimizer_updates_it() -> None:
    parameter, optimizer = parameter_and(torch.optim.AdamW)
    address = parameter.data_ptr()
    with StateGuard(dict) as guard:
        step(parameter, optimizer)
        assert guard.created_state
        guard.restore()
    assert parameter.tolist() == [1.0] * 3
    assert parameter.data_ptr() == address
    assert parameter.grad is None
    assert len(optimizer.state) == 0


@pytest.mark.parametrize("raises", [False, True])
def test_a_trial_is_undone_at_the_end_of_its_block(raises: bool) -> None:
    parameter, optimizer = parameter_and(torch.optim.AdamW)
    with suppress(RuntimeError), StateGuard(dict):
        step(parameter, optimizer)
        if raises:
            raise RuntimeError("a step of its own")
    assert (parameter.tolist(), len(optimizer.state)) == ([1.0] * 3, 0)


def test_existing_state_is_restored_into_the_tensors_that_held_it() -> None:
    parameter, optimizer = parameter_and(torch.optim.AdamW)
    step(parameter, optimizer)
    entry = optimizer.state[parameter]
    before = {name: (tensor, tensor.clone()) for name, tensor in entry.items()}
    value, gradient = parameter.detach().clone(), parameter.grad
    with StateGuard(lambda: {"p": parameter}) as guard:
        step(parameter, optimizer)
        assert not guard.created_state
        guard.restore()
    assert torch.equal(parameter, value)
    assert parameter.grad is gradient
    for name, (tensor, values) in before.items():
        assert optimizer.state[parameter][name] is tensor
        assert torch.equal(tensor, values)


def test_a_trial_step_does_not_advance_the_random_numbers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with StateGuard(dict) as guard:
        torch.rand(5)
        guard.restore()
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adamax, {}),
        (torch.optim.Adadelta, {}),
        (torch.optim.RAdam, {}),
    ],
)
def test_optimizer_state_created_by_a_trial_and_reset_to_zero_trains_like_fresh_state(
    kind: type[torch.optim.Optimizer], settings: dict[str, Any]
) -> None:
    kept, fresh = parameter_and(kind, **settings), parameter_and(kind, **settings)
    with StateGuard(dict) as guard:
        step(*kept)
        guard.restore(keep_created=True)
    assert len(kept[1].state) == 1
    for _ in range(3):
        state = torch.get_rng_state()
        step(*kept)
        torch.set_rng_state(state)
        step(*fresh)
    assert torch.equal(kept[0], fresh[0])


@pytest.mark.parametrize(
    ("kind", "settings"), [(torch.optim.NAdam, {}), (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5})]
)
def test_optimizer_state_created_in_a_step_is_refused_if_its_first_value_is_unknown(
    kind: type[torch.optim.Optimizer], settings: dict[str, Any]
) -> None:
    trained = parameter_and(kind, **settings)
    with StateGuard(dict) as guard, pytest.raises(StateError, match=kind.__name__):
        step(*trained)
        guard.restore(keep_created=True)


class Nested(torch.optim.Optimizer):
    """Keeps its statistics in a list for each parameter, as Shampoo does, and a count under a name, as MADGRAD does."""

    def __init__(self, parameters: list[Tensor], lr: float = 0.1, *, early: bool = True) -> None:
        super().__init__(parameters, {"lr": lr})
        if early:
            self.begin()

    def begin(self) -> None:
        self.state["count"] = torch.zeros(())  # type: ignore[index]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["statistics"] = [torch.zeros(3), {"mean": torch.zeros(3)}]

    def kept(self) -> list[Tensor]:
        [first, second] = next(entry["statistics"] for key, entry in self.state.items() if isinstance(key, Tensor))
        return [self.state["count"], first, second["mean"]]  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self.state:
            self.begin()
        for tensor in self.kept():
            tensor.add_(1)


def begun_anew(parameter: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Two trial steps, undone but for what they made."""
    with StateGuard(dict, [optimizer]) as guard:
        with guard.first_execution():
            step(parameter, optimizer)
        step(parameter, optimizer)
        guard.restore(keep_created=True)


@pytest.mark.parametrize("early", [True, False])
def test_optimizer_state_in_lists_and_attributes_is_restored_after_a_trial(early: bool) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = Nested([parameter], early=early)
    before = optimizer.kept() if early else []
    with StateGuard(dict, [optimizer]) as guard:
        step(parameter, optimizer)
        assert guard.created_state == (not early)
        guard.restore()
    assert bool(optimizer.state) == early
    assert all(found is known for found, known in zip(optimizer.kept() if early else [], before, strict=True))
    assert [tensor.sum() for tensor in before] == [0.0] * len(before)


def test_optimizer_state_created_in_lists_and_attributes_starts_again_from_zero() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = Nested([parameter], early=False)
    begun_anew(parameter, optimizer)
    assert [float(tensor.sum()) for tensor in optimizer.kept()] == [0.0] * 3


def test_nested_optimizer_state_under_a_plain_name_is_found() -> None:
    _, optimizer = parameter_and(Nested)
    found = found_state(optimizer)["optimizer"]
    assert {name: float(found[name].sum()) for name in found if "lr" not in name and "held" not in name} == {
        "count": 0.0,
        "0.statistics.0": 0.0,
        "0.statistics.1.mean": 0.0,
    }


class RMSprop(torch.optim.Optimizer):
    """As TensorFlow has it: its averages begin at one."""

    def __init__(self, parameters: list[Tensor], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            entry = self.state[parameter]
            if not entry:
                entry["average"] = torch.ones_like(parameter)
            entry["average"].lerp_(parameter.grad.square(), 0.1)


def test_a_users_optimizer_with_the_name_of_a_torch_optimizer_starts_with_its_own_values() -> None:
    parameter, optimizer = parameter_and(RMSprop)
    begun_anew(parameter, optimizer)
    assert optimizer.state[parameter]["average"].tolist() == [1.0] * 3


def test_a_buffer_whose_address_changed_once_stays_recorded_as_moved() -> None:
    buffers = {"a": torch.zeros(2), "b": torch.zeros(2)}
    addresses = StaticAddresses(lambda: buffers)
    addresses.remember()
    addresses.check()
    assert addresses.moved == set()
    home = buffers["a"]
    buffers["a"] = torch.zeros(2)
    addresses.check()
    buffers["a"] = home
    addresses.check()
    assert addresses.moved == {"a"}
    assert addresses.seen() == {"a": MOVED, "b": buffers["b"].data_ptr()}


def test_a_composed_tensor_moves_when_one_of_its_parts_moves() -> None:
    codes, scales = torch.zeros(2), torch.ones(2)
    buffers = {"weight": TwoTensor(codes, scales)}  # type: ignore[no-untyped-call]
    addresses = StaticAddresses(lambda: buffers)
    addresses.remember()
    addresses.check()
    assert addresses.seen() == {"weight.a": codes.data_ptr(), "weight.b": scales.data_ptr()}
    buffers["weight"] = TwoTensor(codes, scales.clone())  # type: ignore[no-untyped-call]
    addresses.check()
    assert addresses.moved == {"weight.b"}


class Held:
    """What a step of somebody's own may hold."""

    def __init__(self) -> None:
        self.norm = nn.BatchNorm1d(2)
        self.generator = torch.Generator().manual_seed(0)
        self.average = torch.zeros(2)
        self.table: Tensor | None = None
        self.steps = 0
        self.kept: list[Tensor] = []

    def step(self) -> Tensor:
        self.table = torch.arange(2.0) if self.table is None else self.table
        self.steps += 1
        self.kept.append(torch.ones(1))
        self.average.add_(1)
        loss: Tensor = self.norm(torch.rand(4, 2, generator=self.generator) + self.table).sum()
        random.random()
        np.random.rand()  # noqa: NPY002 - the global generator is the point
        return loss


def test_all_state_that_the_step_can_reach_is_restored_after_a_trial() -> None:
    held = Held()
    known = global_generators()
    before = (held.generator.get_state(), known["python"][0](), str(known["numpy"][0]()))
    with StateGuard(dict, [held.step]) as guard:
        held.step()
        assert guard.created_state
        guard.restore()
    assert (held.table, held.steps, held.kept) == (None, 0, [])
    assert held.average.tolist() == [0, 0]
    assert int(held.norm.num_batches_tracked or 0) == 0
    assert held.norm.running_mean is not None
    assert held.norm.running_mean.tolist() == [0, 0]
    assert torch.equal(held.generator.get_state(), before[0])
    assert (known["python"][0](), str(known["numpy"][0]())) == before[1:]


def test_a_table_of_cached_results_that_later_executions_do_not_change_is_kept_after_a_trial() -> None:
    held = Held()
    with StateGuard(dict, [held.step]) as guard:
        with guard.first_execution():
            held.step()
        held.step()
        guard.restore(keep_created=True)
    assert held.table is not None
    assert held.table.tolist() == [0, 1]
    assert (held.steps, held.average.tolist()) == (0, [0, 0])


def test_a_table_of_cached_results_in_a_variable_that_was_unbound_is_kept_after_a_trial() -> None:
    table = torch.zeros(1)

    def step() -> None:
        nonlocal table
        try:
            table.abs()
        except NameError:
            table = torch.ones(2)

    [variable] = step.__closure__ or ()
    del variable.cell_contents
    with StateGuard(dict, [step]) as guard:
        with guard.first_execution():
            step()
        step()
        guard.restore(keep_created=True)
    assert table.tolist() == [1.0, 1.0]


def test_an_optimizer_entry_set_to_none_starts_with_the_value_of_its_first_step() -> None:
    parameter, optimizer = parameter_and(torch.optim.SGD, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = None
    begun_anew(parameter, optimizer)
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == [0.0] * 3


def test_settings_of_torch_layers_changed_by_the_step_are_restored_after_a_trial() -> None:
    dropout = nn.Dropout(0.1)
    model = nn.Sequential(nn.Linear(2, 2), dropout)

    def step() -> None:
        dropout.p = 0.5
        model.eval()

    with StateGuard(dict, [step]) as guard:
        step()
        guard.restore()
    assert (dropout.p, dropout.training, model.training, model[0].training) == (0.1, True, True, True)


def test_parameters_frozen_by_a_step_are_unfrozen_after_a_trial_without_gradients() -> None:
    model = nn.Linear(2, 1)

    def step() -> None:
        model.requires_grad_(True)
        model(torch.ones(1, 2)).sum().backward()
        model.requires_grad_(False)

    for frozen in (False, True):  # as the first step finds it, and as it leaves it
        model.requires_grad_(not frozen)
        with StateGuard(dict, [step]) as guard:
            step()
            guard.restore()
        assert (model.weight.requires_grad, model.weight.grad) == (not frozen, None)


def test_a_tensor_written_without_detach_is_a_leaf_again_after_a_trial() -> None:
    weight, mean, batch = nn.Parameter(torch.ones(2)), torch.zeros(2), torch.zeros(4)
    part = batch[:2]

    def step() -> None:
        mean.lerp_(weight * 2, 0.5)
        part.add_(weight)

    with StateGuard(dict, [step]) as guard:
        step()
        guard.restore()
    assert (mean.is_leaf, mean.requires_grad, mean.tolist(), part.tolist()) == (True, False, [0.0] * 2, [0.0] * 2)


def test_state_of_two_modules_without_names_is_found() -> None:
    state = found_state(nn.Linear(2, 1), nn.Linear(3, 1), torch.optim.SGD([torch.ones(1)], lr=0.5))
    assert len(state["parameters"]) == 4
    assert "group0.lr" in state["optimizer"]


def test_two_parameters_with_the_same_short_name_are_both_found() -> None:
    """Both the model and the trainer have an attribute `proj` with a `weight`."""
    model = nn.Module()
    model.proj = nn.Linear(2, 2)
    run = SimpleNamespace(model=model, proj=nn.Linear(2, 2), head=nn.Linear(2, 1))
    found = found_state(run)["parameters"]
    assert set(found) == {f"{of}.{name}" for of in ("model.proj", "proj", "head") for name in ("weight", "bias")}
    assert found["model.proj.weight"] is model.proj.weight
    assert found["proj.weight"] is run.proj.weight


def test_a_copy_of_the_trained_model_is_found_with_its_own_parameters() -> None:
    """An average of weights, for example, has parameters of the same names as the trained model."""
    model = nn.Linear(2, 2)
    average = copy.deepcopy(model)
    found = found_state(SimpleNamespace(model=model, average=average), parameters=dict(model.named_parameters()))
    assert found["parameters"].keys() == {"average.weight", "average.bias"}
    assert found["parameters"]["average.weight"] is average.weight


def test_names_of_state_in_a_compiled_module_are_those_of_the_original_module() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    plain, compiled = found_state(model), found_state(torch.compile(model, backend="eager"))
    assert (
        set(compiled["buffers"])
        == set(plain["buffers"])
        == {
            "1.running_mean",
            "1.running_var",
            "1.num_batches_tracked",
        }
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("held", ["the replica", "model first", "replica first"])
def test_state_names_under_distributed_data_parallel_equal_those_of_one_process(held: str, compiled: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    ranked = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)  # without its processes
    nn.Module.__init__(ranked)
    ranked.module = model
    replica = torch.compile(ranked, backend="eager") if compiled else ranked
    held_both: dict[str, list[Any]] = {"model first": [model, replica], "replica first": [replica, model]}
    roots = held_both.get(held, [replica])
    plain, found = found_state(model), found_state(*roots)
    assert {category: set(names) for category, names in found.items()} == {
        category: set(names) for category, names in plain.items()
    }
    assert set(plain["buffers"]) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_the_state_of_an_optimizer_in_a_librarys_wrapper_is_restored_and_found_once() -> None:
    """accelerate, for example, wraps optimizers.

    The state of a captured optimizer starts at zero whatever its wrapper is called.
    """

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        @property
        def state(self) -> Any:  # type: ignore[override]
            return self.optimizer.state

        @property
        def param_groups(self) -> Any:  # type: ignore[override]
            return self.optimizer.param_groups

    parameter, optimizer = parameter_and(torch.optim.AdamW)
    wrapper = Wrapper(optimizer)
    run = lambda: (wrapper, parameter)[1]
    with StateGuard(dict, [run]) as guard:
        step(parameter, optimizer)
        guard.restore(keep_created=True)
    assert [value.abs().sum().item() for value in optimizer.state[parameter].values()] == [0.0, 0.0, 0.0]
    assert {name for name in found_state(run)["optimizer"] if name.endswith("exp_avg")} == {"0.exp_avg"}


@pytest.mark.parametrize("on_fake_tensors", [False, True])
def test_memory_assigned_to_a_parameter_by_a_trial_is_replaced_by_the_original_memory(
    on_fake_tensors: bool,
) -> None:
    """Optimizers in eight bits assign such memory, and evaluations that temporarily use averaged weights."""
    parameter = nn.Parameter(torch.ones(3))
    buffer, empty = torch.ones(2), torch.zeros(0)
    gradient = torch.full((3,), 2.0)
    parameter.grad = gradient
    addresses = parameter.data_ptr(), buffer.data_ptr()
    with StateGuard(lambda: {"p": parameter, "b": buffer, "e": empty}) as guard:
        with FakeTensorMode(allow_non_fake_inputs=True) if on_fake_tensors else nullcontext():
            parameter.grad = None
            parameter.data = parameter.data * 3
            buffer.data = torch.zeros(5)
        guard.restore()
    assert (parameter.tolist(), buffer.tolist()) == ([1.0] * 3, [1.0] * 2)
    assert (parameter.data_ptr(), buffer.data_ptr()) == addresses
    assert (parameter.grad is gradient, gradient.tolist()) == (True, [2.0] * 3)


def test_two_wrapper_tensors_without_addresses_count_as_different() -> None:
    """Regression: quantized weights have no address of their own.

    All counted as address 0, so a timing reported that its arms share weights.
    """
    one, other = (TwoTensor(torch.randn(3), torch.randn(3)) for _ in range(2))  # type: ignore[no-untyped-call]
    assert same(one) == same(one.detach())
    assert same(one) != same(other)


def test_settings_of_optimizer_and_scheduler_do_not_count_as_types_of_an_optimizers_state() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    scheduler.step()
    kept = found_state((optimizer, scheduler))["optimizer"]
    moments = {name for name, each in kept.items() if each.numel() > 1 and not is_text(each)}
    assert {name.rpartition(".")[2] for name in moments} == {"held", "exp_avg", "exp_avg_sq"}
    assert all(is_text(as_tensor(value)) for value in ("cosine", "größer", "two\nlines", None, (1, 2.5)))
    quantized = [torch.arange(64, dtype=torch.uint8), torch.full((64,), 200, dtype=torch.uint8)]
    assert not any(is_text(each) for each in (*quantized, torch.ones(4)))
