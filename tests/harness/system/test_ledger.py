"""The ledger leaves a step as it is, whatever the step is made of, and a failure of its own costs the step nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from harness.system.replay.ledger import DATA, PARAMETERS, Ledger, Memory


def memory(ledger: Ledger, tensor: Tensor) -> Memory:
    found = ledger.memory_of(tensor)
    assert found is not None
    return found


def made_of(ledger: Ledger, tensor: Tensor) -> int:
    return memory(ledger, tensor).made_of & (PARAMETERS | DATA)


def trained(around: AbstractContextManager[Any], *, compiled: bool) -> dict[str, Tensor]:
    """What five steps make: dropout, an in-place activation, views, a fused optimizer, an average, statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=True)
    called: Any = torch.compile(model) if compiled else model
    average = [each.detach().clone() for each in model.parameters()]
    losses = torch.zeros(5)
    for index in range(5):
        with around:
            optimizer.zero_grad()
            loss = called(torch.randn(7, 6).t()[:, :6].t()).square().mean()
            loss.backward()
            optimizer.step()
            losses[index : index + 1].copy_(loss.detach().reshape(1))
            torch._foreach_lerp_(average, [each.detach() for each in model.parameters()], 0.1)
        if isinstance(around, Ledger):
            around.ended(loss)
    moments = [each["exp_avg"] for each in optimizer.state.values()]
    tensors = [*model.parameters(), *model.buffers(), *average, *moments, losses, torch.get_rng_state()]
    return {str(index): each.detach().clone() for index, each in enumerate(tensors)}


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def test_a_training_observed_by_the_ledger_ends_with_the_bits_of_an_unobserved_training() -> None:
    """The ledger notes for each tensor from which tensors it is computed, and whether a later step reads it."""
    ledger = Ledger()
    assert_equal(trained(ledger, compiled=False), trained(nullcontext(), compiled=False))
    assert ledger.failure is None


def compare_compiled() -> None:
    """Train compiled code with and without a ledger, for a process of its own."""
    ledger = Ledger()
    observed = trained(ledger, compiled=True)
    torch._dynamo.reset()
    assert_equal(observed, trained(nullcontext(), compiled=True))
    assert ledger.failure is None


@pytest.mark.slow
def test_a_compiled_training_observed_by_the_ledger_ends_with_unchanged_bits() -> None:
    """The test starts its own process, because threads of an earlier compilation may import setuptools at the same
    time. Concurrent imports of setuptools fail.
    """
    program = f"import setuptools, {Path(__file__).stem} as tests; tests.compare_compiled()"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)


def test_compiled_code_stays_compiled() -> None:
    compilations: list[int] = []

    def compiler(module: Any, _inputs: object) -> Any:
        compilations.append(1)
        return module

    called: Any = torch.compile(nn.Linear(3, 2), backend=compiler)
    for _ in range(3):
        with Ledger():
            called(torch.ones(4, 3))
    called(torch.ones(4, 3))
    assert compilations == [1]


def test_an_error_inside_the_ledger_does_not_stop_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger notes for each tensor from which tensors it is computed, and whether a later step reads it."""
    ledger = Ledger()
    monkeypatch.setattr(ledger, "_read", lambda _memory: 1 / 0)
    with ledger:
        total = torch.ones(3) + 1
    assert total.tolist() == [2, 2, 2]
    assert ledger.failure == "ZeroDivisionError: division by zero"


def test_an_error_raised_by_the_step_under_the_ledger_is_raised_unchanged() -> None:
    ledger = Ledger()
    with pytest.raises(RuntimeError, match="size"), ledger:
        torch.ones(3) + torch.ones(4)
    assert ledger.failure is None


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", ["sparse", "csr", "quantized", "nested", "fake", "meta", "complex", "empty"])
def test_unusual_tensors_do_not_make_the_ledger_fail(kind: str) -> None:
    """The ledger notes for each tensor from which tensors it is computed, and whether a later step reads it."""
    ledger = Ledger()
    with ledger:
        if kind == "sparse":
            torch.sparse.mm(torch.eye(3).to_sparse(), torch.ones(3, 2))
        elif kind == "csr":
            torch.eye(3).to_sparse_csr() @ torch.ones(3, 2)
        elif kind == "quantized":
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize()
        elif kind == "nested":
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged).sin()
        elif kind == "fake":
            with FakeTensorMode() as mode:
                mode.from_tensor(nn.Parameter(torch.ones(3), requires_grad=False)).add_(1)
        elif kind == "meta":
            torch.ones(3, device="meta").add_(1)
        elif kind == "complex":
            torch.view_as_real(torch.ones(3, dtype=torch.complex64).conj().resolve_conj()).sum()
        else:
            torch.zeros(0).fill_(1)
    assert ledger.failure is None


def test_the_ledger_follows_the_inner_tensors_of_a_tensor_subclass() -> None:
    """The ledger notes for each tensor from which tensors it is computed, and whether a later step reads it."""
    ledger, parts = Ledger(), [torch.ones(3), torch.ones(3)]
    ledger.keep(parts)
    weight: Any = TwoTensor(*parts)  # type: ignore[no-untyped-call]
    with ledger:
        average = weight.clone()
        average.mul_(0.9)
    assert ledger.failure is None
    assert [made_of(ledger, each) for each in (average.a, average.b)] == [PARAMETERS, PARAMETERS]


@pytest.mark.parametrize(
    ("make", "of"),
    [
        (lambda p, _: p.clone(), PARAMETERS),
        (lambda p, x: p @ x, PARAMETERS | DATA),
        (lambda _, x: x.mean(), DATA),
        (lambda p, _: torch.zeros_like(p), 0),
        (lambda p, _: torch.rand_like(p), DATA),
        (lambda _, __: torch.arange(3), 0),
        (lambda _, __: torch.tensor(0.5), 0),
        (lambda _, __: torch.tensor([0.5, 1.0]), DATA),
        (lambda p, x: torch.where(x.mean() > 0, p, p + 1), PARAMETERS),
        (lambda p, x: torch.zeros(3, 3).copy_(p).add_(x.mean()), PARAMETERS | DATA),
        (lambda p, x: x.clone().copy_(p), PARAMETERS),
        (lambda p, x: torch.add(p, 1, out=x.clone()), PARAMETERS),
        (lambda p, _: torch.cat([p, p]), PARAMETERS),
        (lambda p, x: p.masked_fill(x > 0, 0.0), PARAMETERS),
    ],
)
def test_the_ledger_derives_the_origin_of_a_result_from_its_inputs(make: Any, of: int) -> None:
    """The ledger notes for each tensor from which tensors it is computed, and whether a later step reads it."""
    ledger, parameter, batch = Ledger(), nn.Parameter(torch.ones(3, 3), requires_grad=False), torch.ones(3, 3)
    with ledger:
        made = make(parameter, batch)
    assert made_of(ledger, made) == of


def test_the_ledger_marks_a_tensor_that_reaches_a_parameter_through_other_tensors_as_read() -> None:
    """The ledger notes for each tensor from which tensors it is computed, and whether a later step reads it."""
    ledger, parameter = Ledger(), nn.Parameter(torch.ones(3), requires_grad=False)
    with ledger:
        first, second, third = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    ledger.ended(None)
    with ledger:
        second.add_(first)
        third.add_(1)
    ledger.ended(None)
    with ledger:
        parameter.add_(second)
        _ = third + 1
    ledger.ended(None)
    read = [bool(memory(ledger, each).marks & ledger.read_marks()) for each in (first, second, third)]
    assert read == [True, True, False]


def test_the_ledger_forgets_freed_memory() -> None:
    """The ledger notes for each tensor from which tensors it is computed, and whether a later step reads it."""
    ledger = Ledger()
    for _ in range(3):
        with ledger:
            kept = torch.ones(3) + 1
        ledger.ended(None)
    assert memory(ledger, kept).born == 2
    assert len(ledger._memories) == 1
