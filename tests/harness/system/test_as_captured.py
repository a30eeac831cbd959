"""What asks whether a CUDA graph is being captured is told yes while a step is recorded, and is named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from installed_packages import record_installed
from torch import Tensor

from harness.system.replay.launches import as_captured
from harness.system.replay.traced import TracedStep

# as transformers asks: without CUDA torch's own function raises
LIBRARY = """import torch

def is_capturing(of=torch.cuda):
    try:
        return of.is_current_stream_capturing()
    except Exception:
        return False

def checked(values):
    if not is_capturing():
        assert values.isfinite().all()
    return values
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    record_installed(tmp_path, {"a_checking_library.py": LIBRARY})
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("a_checking_library")
    del sys.modules["a_checking_library"]


def test_a_step_can_be_recorded_if_its_library_reads_values_only_outside_captures(library: Any) -> None:
    weight, values = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])

    def body() -> Tensor:
        weight.mul_(2)
        total: Tensor = (library.checked(values) * weight).sum()
        return total

    expected = [float(body()) for _ in range(3)]
    weight.copy_(torch.tensor([1.0, 2.0]))
    step = TracedStep(body, lambda: {"weight": weight})
    step.record()
    assert [float(step.replay()) for _ in range(3)] == expected
    [asked] = step.asked_whether_captured
    assert asked.startswith("a_checking_library.py:5, called at ")
    assert asked.endswith(" in body `total: Tensor = (library.checked(values) * weight).sum()`")


def test_the_simulated_capture_flag_is_restored_after_the_block(library: Any) -> None:
    original = torch.cuda.is_current_stream_capturing
    with as_captured() as asked:
        assert library.is_capturing()
        assert library.is_capturing(torch.cuda.graphs)
    assert len(asked) == 2  # two lines of this test
    assert torch.cuda.is_current_stream_capturing is original
    assert torch.cuda.graphs.is_current_stream_capturing is original
    assert not library.is_capturing()


def test_torch_itself_does_not_see_the_simulated_capture() -> None:
    """An optimizer that detects a capture requires its option `capturable`."""
    of_torch: dict[str, Any] = {"__name__": "torch.optim.optimizer", "torch": torch}
    exec("def ask():\n    return torch.cuda.is_current_stream_capturing()\n", of_torch)  # noqa: S102
    with as_captured() as asked:
        assert of_torch["ask"]() is False
    assert asked == []


def padded(tokens: int) -> Callable[[int], Mapping[str, Tensor]]:
    def batch(index: int) -> Mapping[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, 64, (2, 8), generator=generator)
        mask = (torch.arange(8) < torch.tensor([[tokens], [8]])).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    return batch


@pytest.mark.slow
def test_a_model_of_transformers_with_an_attention_mask_is_recorded() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    def trained(*, recorded: bool) -> list[float]:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64, attn_implementation="sdpa"))
        optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.1), padded(5)
        static = {name: tensor.clone() for name, tensor in batch(0).items()}

        def body() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(**static).loss
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        step = TracedStep(body, lambda: dict(model.named_parameters()), roots=[body])
        losses = []
        for index in range(3):
            for name, tensor in batch(index).items():
                static[name].copy_(tensor)
            losses.append(float(step.replay() if recorded else body()))
        return losses

    losses = trained(recorded=False)
    assert losses[0] != losses[2]
    assert trained(recorded=True) == losses
