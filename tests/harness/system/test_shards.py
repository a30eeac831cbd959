"""Tensors that ranks share, in one process: what is a part, what is whole, and what the harness does to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.execution.watchers.reductions import digest_of_all, digests, largest_difference, not_finite
from harness.execution.watchers.sync_detectors import DispatchWatch
from harness.system import sharded_tensors
from harness.system.replay.found_state import found_state, same
from harness.system.replay.reachable import reach
from harness.system.replay.state import StateGuard, StaticAddresses
from harness.system.replay.traced import NotTraceableError, TracedStep

EIGHT = torch.arange(8, dtype=torch.float32)


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """A group of four, of which this process is the first and no other is there: nothing may be communicated."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.fixture
def alone() -> Iterator[DeviceMesh]:
    """The mesh of a group of one, in which gathering is real."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


# What takes a second to import is imported when a test asks for it, and not in every process that collects.
def spread(tensor: Tensor, mesh: DeviceMesh, *placements: str) -> Tensor:
    """A DTensor of which this process holds `tensor`; placements: one for each dimension of the mesh."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    known = {"a part": Shard(0), "a summand": Partial(), "the whole": Replicate()}
    return DTensor.from_local(tensor, mesh, [known[each] for each in placements], run_check=False)


def sharded(module: nn.Module, mesh: DeviceMesh) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=mesh)


@pytest.mark.parametrize(
    ("placements", "replicated"),
    [
        (("a part", "a part"), False),
        (("a part", "a summand"), False),
        (("the whole", "a part"), True),  # HSDP
        (("the whole", "the whole"), True),
    ],
)
@pytest.mark.usefixtures("four_ranks")
def test_a_tensor_counts_as_replicated_if_another_rank_holds_the_same_elements(
    placements: tuple[str, str], *, replicated: bool
) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    assert sharded_tensors.is_replicated(spread(EIGHT, mesh, *placements)) is replicated
    assert sharded_tensors.is_replicated(EIGHT)


def test_a_tensor_sharded_over_one_rank_is_not_replicated(alone: DeviceMesh) -> None:
    assert not sharded_tensors.is_replicated(spread(EIGHT, alone, "the whole"))


@pytest.mark.usefixtures("four_ranks")
def test_elements_of_sharded_tensors_are_counted_for_this_rank_and_for_all_ranks() -> None:
    mesh = init_device_mesh("cpu", (4,))
    tensors = [spread(EIGHT, mesh, "a part"), spread(EIGHT, mesh, "the whole"), EIGHT]
    assert sharded_tensors.elements(tensors) == (24, 48)


def test_a_sharded_tensor_has_the_digest_of_the_whole_tensor(alone: DeviceMesh) -> None:
    ours, bad = spread(EIGHT, alone, "a part"), spread(EIGHT / 0, alone, "a part")
    assert digests({"p": ours}) == digests({"p": EIGHT})
    assert digest_of_all({"p": ours}) == digest_of_all({"p": EIGHT})
    assert not_finite({"p": ours, "bad": bad}) == {"bad"}
    assert largest_difference(ours, EIGHT + 1) == largest_difference(EIGHT + 1, ours) == 1.0


def test_two_sharded_tensors_of_equal_shape_count_as_different_tensors(alone: DeviceMesh) -> None:
    one, other = (spread(EIGHT.clone(), alone, "a part") for _ in range(2))
    assert same(one) == same(one.detach())
    assert same(one) != same(other)


def test_a_shard_whose_address_changed_is_reported(alone: DeviceMesh) -> None:
    held = {"p": spread(EIGHT.clone(), alone, "a part")}
    addresses = StaticAddresses(lambda: held)
    addresses.remember()
    addresses.check()
    assert not addresses.moved
    held["p"] = spread(EIGHT.clone(), alone, "a part")
    addresses.check()
    assert addresses.moved == {"p"}


def test_checking_addresses_of_shards_is_not_an_operation_of_the_step(alone: DeviceMesh) -> None:
    held = {"p": nn.Parameter(spread(EIGHT.clone(), alone, "a part")), "b": EIGHT.clone()}
    addresses = StaticAddresses(lambda: held)
    addresses.remember()
    with DispatchWatch("cpu") as watch:
        watch.restart()
        addresses.check()
    assert watch.operations == 0
    assert addresses.captured["p"] == sharded_tensors.local(held["p"]).data_ptr()


def test_changes_of_a_trial_step_to_sharded_state_are_undone(alone: DeviceMesh) -> None:
    model = sharded(nn.Linear(4, 4), alone)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    step()

    def state() -> dict[str, Tensor]:
        return {**dict(model.named_parameters()), "moment": optimizer.state[model.weight]["exp_avg"]}

    before = digests(state())
    with StateGuard(dict, [step]) as guard:
        step()
        assert digests(state()) != before
        guard.restore()
    assert digests(state()) == before


def test_a_step_on_shards_is_not_recorded_and_training_continues(alone: DeviceMesh) -> None:
    """A pass on tensors without values would remove the values of FSDP2's buffers."""
    model = sharded(nn.Linear(4, 4), alone)

    def step() -> Tensor:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        detached: Tensor = loss.detach()
        return detached

    with pytest.raises(NotTraceableError, match=r"2 tensors divided among ranks \(DTensor\)"):
        TracedStep(step, dict, roots=[step]).record()
    assert type(step()) is Tensor


def test_a_tensor_attribute_of_a_users_module_is_found_after_sharding(alone: DeviceMesh) -> None:
    class Averaging(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.average = torch.zeros(4)

    assert list(reach(sharded(Averaging(), alone)).tensors) == ["average"]


def test_optimizer_moments_that_ranks_divide_are_found_under_the_names_of_their_parameters(alone: DeviceMesh) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Linear(2, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    moments = {name for name in found_state(step)["optimizer"] if "exp_avg" in name}
    assert moments == {f"{name}.{kind}" for name in ("weight", "bias") for kind in ("exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize("reduced", ["functional", "in Python"])
def test_a_recorded_collective_needs_its_wait_in_the_recording(alone: DeviceMesh, reduced: str) -> None:
    from torch.distributed._functional_collectives import all_reduce

    weight = torch.ones(2)

    world = dist.group.WORLD
    assert world is not None

    def step() -> Tensor:
        if reduced == "in Python":
            dist.all_reduce(weight)
            return weight.mul_(2.0).sum()
        return weight.copy_(all_reduce(weight, "sum", world) * 2.0).sum()

    traced = TracedStep(step, lambda: {"weight": weight}, roots=[step])
    if reduced == "in Python":
        with pytest.raises(NotTraceableError, match=r"c10d\.allreduce_, for which Python code waits"):
            traced.record()
        assert weight.tolist() == [1.0, 1.0]
    else:
        assert [traced.replay().item() for _ in range(2)] == [4.0, 8.0]
