"""On a CPU it is foreseen which tensors a step copies from the host of a GPU, and what it changes there."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from harness.system.replay.cpu_as_device import as_on_a_device
from harness.system.replay.placement import Placement

# Lines of a step: what marks them says which list they belong to.
TRAINER = """
import numpy as np
import torch
from torch import nn

HERE = "cuda" if torch.cuda.is_available() else "cpu"
AT_IMPORT = torch.arange(4.0)

def opened():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).to(HERE)
    table, mask, rows = torch.linspace(0, 1, 4), torch.tensor([True, False, True]), torch.tensor([0, 1])
    average = torch.zeros(4, device=HERE)
    placed = torch.linspace(0, 1, 4).to(HERE)
    scale, count, rate = torch.tensor(1.0), torch.tensor([0.0]), np.ones(4, np.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    fused = torch.optim.AdamW(model.parameters(), fused=True)
    plain = torch.optim.SGD(model.parameters(), 0.1)
    able = torch.optim.AdamW(model.parameters(), capturable=True)
    x = torch.randn(3, 4).to(HERE)
    built = {}

    def step():
        batch = x.clone()
        index = torch.arange(2, device=batch.device)
        torch.tensor([3]).to(batch.device)  # copies
        torch.tensor(3.0, device=batch.device)  # copies
        torch.as_tensor(rate, device=HERE)  # copies
        torch.from_numpy(rate).to(batch)  # copies
        batch.new_tensor([1.0])  # copies
        torch.add(batch, other=scale).to(batch.device)
        table.to(batch.device)  # copies
        table.to("cpu")
        table[index]  # copies
        batch[mask]  # copies
        batch[[0, 2]]  # copies
        batch[:, rows]  # copies
        torch.zeros(4, device=HERE).copy_(table)  # copies
        AT_IMPORT.to(batch.device)  # unknown
        torch.full((3,), 2.0, device=batch.device)
        torch.tensor([], device=batch.device)
        torch.zeros_like(batch) + torch.ones(3, 4, device=HERE) + placed + placed.to(HERE) + average[index].sum()
        built.setdefault("table", built.get("table", table).to(HERE) if not built else None)  # first step alone
        count.add_(1)  # changes
        scale[...] = 0.5  # changes
        torch.zeros(3).add_(1)
        output = model(batch) * scale
        average.lerp_(output.detach().mean(0), 0.1)
        loss = output.gather(1, torch.zeros(3, 1, dtype=torch.long, device=HERE)).sum()  # unrepeated
        loss = loss + output.cumsum(0).sum() + torch.arange(3, device=HERE).cumsum(0).sum()  # unrepeated
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # uncapturable
        fused.step()  # uncapturable
        plain.step()
        able.step()

    return step
"""


def test_placement_names_source_lines_by_their_device_copies_and_nondeterministic_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    monkeypatch.syspath_prepend(str(tmp_path))
    opened = importlib.import_module("trainer").opened
    placement = Placement()
    with placement:
        step = opened()
        for _ in range(2):
            with placement.watching(), as_on_a_device():
                step()
    del sys.modules["trainer"]
    lines = TRAINER.splitlines()
    for kind in ("copies", "changes", "unknown", "unrepeated", "uncapturable"):
        expected = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {kind}")]
        found = [int(place.partition("trainer.py:")[2].split(",")[0]) for place in getattr(placement, kind)]
        assert sorted(found) == expected, kind
    assert {each.partition(" at ")[0] for each in placement.unrepeated} == {
        "aten.scatter_add",
        "aten.cumsum, which has no deterministic form,",
    }


def test_operators_with_a_deterministic_form_are_not_named_under_deterministic_algorithms() -> None:
    values = torch.zeros(2, 2)
    placement = Placement()
    torch.use_deterministic_algorithms(True)
    try:
        with placement, placement.watching():
            values.scatter_add(0, torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2))
            values.cumsum(0)
    finally:
        torch.use_deterministic_algorithms(False)
    [named] = placement.unrepeated
    assert named.startswith("aten.cumsum, which has no deterministic form,")
