"""A step that replays a graph is observed by the graph's capture: here the graph is a stand-in that needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from harness.evidence.run_records import ObservedOperator, ObservedStep
from harness.execution.watchers import reductions, step_operators
from harness.execution.watchers.reductions import as_hex, digest_on_device, digests
from harness.execution.watchers.step_operators import ObservedCaptures, StepOperators
from harness.judging.first_difference import aligned, difference_of
from harness.system.replay import launches
from harness.system.replay.cpu_as_device import tensors_in
from harness.system.replay.sites import SiteFinder


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, returned))
        return returned


class Graph:
    """Keeps what is executed in its capture; a replay computes it anew into the same memory, as a CUDA graph does."""

    capturing = False

    def capture_begin(self) -> None:
        self._mode = _Calls()
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        Graph.capturing = True

    def capture_end(self) -> None:
        Graph.capturing = False
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def replay(self) -> None:
        with torch.no_grad(), _disable_current_modes():
            for func, args, kwargs, returned in self._mode.calls:
                for kept, now in zip(tensors_in([returned]), tensors_in([func(*args, **kwargs)]), strict=True):
                    if kept.data_ptr() != now.data_ptr():
                        kept.copy_(now)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.devices.graphs._Graph", Graph)
    for module in (step_operators, reductions):
        monkeypatch.setattr(module, "is_capturing", lambda: Graph.capturing)


class Training:
    """One weight, and a step that can be captured."""

    def __init__(self) -> None:
        self.w, self.x = torch.arange(12.0).reshape(4, 3) / 7, torch.zeros(2, 4)

    def body(self) -> Tensor:
        made = self.x.new_empty(2, 3)
        torch.mm(self.x, self.w, out=made)
        made = made.relu()
        self.w.sub_(self.x.t() @ made, alpha=0.1)
        return made.sum()

    def prepare(self, index: int) -> None:
        self.x.fill_(1.0 + index).mul_(0.3)

    def state(self) -> dict[str, Tensor]:
        return {"parameters w": self.w}

    def observed(self, step: Callable[[], object], captures: ObservedCaptures) -> StepOperators:
        observer = captures.step = StepOperators(SiteFinder({}))
        observer.begin(SiteFinder({}), self.state())
        with observer:
            self.prepare(1)
            step()
        return observer


def captured(training: Training) -> Graph:
    graph, before = Graph(), training.w.clone()
    graph.capture_begin()
    training.body()
    graph.capture_end()
    training.w.copy_(before)  # a capture executes nothing
    return graph


def replayed_step() -> tuple[Training, StepOperators]:
    training = Training()
    with ObservedCaptures(lambda: SiteFinder({})) as captures:
        graph = captured(training)
        training.prepare(0)
        graph.replay()
        return training, training.observed(graph.replay, captures)


def plain_step() -> tuple[Training, StepOperators]:
    training = Training()
    training.prepare(0)
    training.body()
    return training, training.observed(training.body, ObservedCaptures(lambda: SiteFinder({})))


def seen_of(operator: ObservedOperator) -> list[object]:
    of_reads = [(each.digest, each.form, each.source, each.name) for each in operator.reads]
    return [operator.name, operator.arguments, of_reads, operator.makes, operator.leaves, operator.writes]


@pytest.mark.usefixtures("graphs")
def test_a_replay_shows_the_operators_of_the_plain_step_with_the_same_digests() -> None:
    (plain, of_plain), (replaying, of_replay) = plain_step(), replayed_step()
    assert torch.equal(plain.w, replaying.w)
    expected, found = of_plain.operators({}), of_replay.operators({})
    assert [*map(seen_of, found)] == [*map(seen_of, expected)]
    assert {each.phase for each in found} == {each.phase for each in expected} == {"forward"}
    assert len(aligned(found, expected)) == len(expected)
    assert [each.name for each in found if each.writes] == ["aten.sub_"]
    assert [each.replayed for each in found] == [False, False, *[True] * (len(found) - 2)]
    assert [each.captured_as for each in found] == [None, None, *range(len(found) - 2)]
    assert (of_replay.unseen, of_plain.unseen) == (0, 0)


@pytest.mark.usefixtures("graphs")
def test_two_replays_in_one_step_keep_separate_digests() -> None:
    training = Training()
    with ObservedCaptures(lambda: SiteFinder({})) as captures:
        graph = captured(training)

        def twice() -> None:
            graph.replay()
            graph.replay()

        found = training.observed(twice, captures).operators({})
    [first, second] = [each for each in found if each.name == "aten.sub_"]
    assert first.leaves[0] == second.reads[0].digest != second.leaves[0]
    assert found[second.reads[0].source or 0] == first


@pytest.mark.usefixtures("graphs")
def test_values_of_a_captured_operator_come_from_the_observed_replay() -> None:
    training = Training()
    with ObservedCaptures(lambda: SiteFinder({}), [1]) as captures:
        graph = captured(training)
        training.prepare(1)
        expected = (training.x @ training.w).reshape(-1).tolist()
        observer = captures.step = StepOperators(SiteFinder({}), [1])
        observer.begin(SiteFinder({}), {})
        with observer:
            graph.replay()
    [kept] = [each for each in observer.operators({}) if each.values]
    assert (kept.name, kept.values[0] if kept.values else None) == ("aten.mm", expected)


@pytest.mark.usefixtures("graphs")
def test_a_graph_that_was_not_observed_is_counted_and_its_part_of_the_step_is_not_reported_as_equal() -> None:
    training = Training()
    graph = captured(training)
    with ObservedCaptures(lambda: SiteFinder({})) as captures:
        observer = training.observed(graph.replay, captures)
    assert observer.unseen == 1
    fields = {"replica": 1, "step": 0, "before": {}, "batch": {}, "loss": "a", "gradients": {}}
    step = ObservedStep(arm="a", after={"parameters w": "0"}, operators=observer.operators({}), unseen=1, **fields)
    rows = {row.part: row.answer for row in difference_of(step, step).path}
    assert (rows["forward"], rows["update"], rows["loss"]) == ("not_seen", "not_seen", "equal")


@pytest.mark.usefixtures("graphs")
def test_an_observation_that_exceeds_its_time_limit_records_nothing() -> None:
    observer = StepOperators(SiteFinder({}), until=0.0)
    with observer:
        torch.ones(2).add_(1)
    assert (observer.is_cut, observer.operators({}), observer.bytes) == (True, [], 0)


def double(given: Tensor, out: Tensor) -> None:
    """Stand for a kernel: no operator writes what it writes."""
    with _disable_current_modes():
        out.numpy()[...] = 2 * given.numpy()


def launch_kernel(given: Tensor, out: Tensor) -> None:
    launches.announced("double", (given, out), {"factor": 2}, lambda: double(given, out))


def observed(step: Callable[[], object], state: dict[str, Tensor]) -> list[ObservedOperator]:
    observer = StepOperators(SiteFinder({}))
    observer.begin(SiteFinder({}), state)
    with observer:
        step()
    return observer.operators({})


def test_an_announced_launch_is_recorded_as_an_operator_at_its_calling_line() -> None:
    given, out = torch.ones(3), torch.zeros(3)

    def step() -> Tensor:
        launch_kernel(given, out)  # here
        return out + 1

    launched, added = observed(step, {"state given": given, "state out": out})
    assert (launched.name, launched.arguments) == ("double", ["·", "·", "factor=2"])
    assert launched.code.endswith("launch_kernel(given, out)  # here")
    assert [each.name for each in launched.reads] == ["state given", "state out"]
    assert launched.writes == ["state out"]
    assert launched.leaves == [None, digests({"": out})[""]]
    assert (added.reads[0].source, added.reads[0].digest) == (0, launched.leaves[1])


def test_operators_within_an_announced_launch_belong_to_the_launch() -> None:
    out = torch.zeros(3)
    step = lambda: launches.announced("added", (out,), {}, lambda: out.add_(1))
    [launched] = observed(step, {"state out": out})
    assert (launched.name, launched.writes) == ("added", ["state out"])


def test_a_tensor_written_by_an_unannounced_launch_has_no_known_source() -> None:
    given, out = torch.ones(3), torch.zeros(3)

    def step() -> Tensor:
        out.zero_().add_(1)
        double(given, out)
        return out + 1

    added = observed(step, {"state out": out})[-1]
    assert (added.reads[0].source, added.reads[0].name) == (None, None)


def test_memory_never_written_before_a_launch_has_no_digest() -> None:
    def step() -> None:
        launch_kernel(torch.ones(3), torch.empty(3))

    launched = observed(step, {})[-1]
    assert launched.reads[1].digest is None
    assert launched.leaves == [None, digests({"": torch.full((3,), 2.0)})[""]]


def test_elements_that_a_kernel_leaves_unwritten_are_the_same_in_every_execution() -> None:
    def step() -> None:
        torch.full((64,), 3.0)  # what memory that is used again may hold
        out = torch.empty(64)
        launch_kernel(torch.ones(32), out[:32])
        out.sum()

    [before, after] = [observed(step, {})[-1].reads[0].digest for _ in range(2)]
    assert before == after == digests({"": torch.tensor([2.0] * 32 + [0.0] * 32)})[""]


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for Triton's class of compiled functions, which are launched by `run`."""

    class Function:
        __name__ = "_double"

        def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            if not warmup:
                double(*args)

    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=Function))
    monkeypatch.setattr(launches, "has_cuda", lambda: False)
    return Function


def test_a_triton_launch_is_recorded_and_a_compile_only_launch_is_not(triton: Any) -> None:
    given, out, run = torch.ones(3), torch.zeros(3), triton.run

    def step() -> None:
        triton().run(given, out, grid=(1,), warmup=True, BLOCK=4)
        triton().run(given, out, grid=(1,), warmup=False, BLOCK=4)

    with launches.triton_announced():
        [launched] = observed(step, {})
    assert (launched.name, launched.arguments) == ("_double", ["·", "·", "BLOCK=4"])
    assert triton.run is run


def test_a_launch_nested_in_an_announced_launch_is_recorded_once(triton: Any) -> None:
    given, out = torch.ones(3), torch.zeros(3)

    def step() -> None:
        launches.announced("outer", (given, out), {}, lambda: triton().run(given, out, grid=(1,), warmup=False))

    with launches.triton_announced():
        assert [each.name for each in observed(step, {})] == ["outer"]


class Covered(Tensor):
    """A library's own type."""


KINDS = {
    "transposed": torch.arange(15.0).reshape(3, 5).t(),
    "strided": torch.arange(40, dtype=torch.int16)[1::3],
    "unaligned": torch.arange(41, dtype=torch.uint8)[3:],
    "no_elements": torch.zeros(0, 4),
    "bool": torch.arange(11) % 3 == 0,
    "complex": torch.complex(torch.arange(5.0), -torch.arange(5.0)).conj(),
    "fp8": torch.arange(9.0).to(torch.float8_e4m3fn),
    "expanded": torch.ones(1).expand(7),
    "number": torch.tensor(3),
    "of_a_library": torch.arange(6.0).as_subclass(Covered),
    "large": torch.arange(70_000),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("graphs")
def test_a_digest_computed_within_a_capture_equals_the_digest_computed_outside(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digests({kind: KINDS[kind]})[kind]
    kept = reductions._kept_positions.cache_info()
    monkeypatch.setattr(Graph, "capturing", True)
    assert as_hex(int(digest_on_device(KINDS[kind]))) == expected
    assert reductions._kept_positions.cache_info() == kept  # a capture uses none, and leaves none behind
