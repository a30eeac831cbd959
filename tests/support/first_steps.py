"""A small training step as a user writes it, and the commands that tests run in its project."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from harness.cli import application

STEP = """
import torch

{at_import}

def make_step(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    {before}

    def step(batch):
        optimizer.zero_grad()
        loss = {loss}(model(batch["x"]), batch["y"])
        loss.backward()
        {before_update}; optimizer.step()
        {after}
        return loss

    def batch(index):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        x = torch.randn(32, 8, generator=generator)
        return {{"x": x[x[:, 0] < 9], "y": x.sum(dim=1, keepdim=True)}}

    return step, batch, model
"""


def written(
    project: Path,
    *,
    at_import: str = "",
    before: str = "pass",
    before_update: str = "pass",
    after: str = "pass",
    loss: str = "torch.nn.functional.mse_loss",
) -> None:
    text = STEP.format(at_import=at_import, before=before, before_update=before_update, after=after, loss=loss)
    (project / "train.py").write_text(text)


def called(project: Path, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of the command executed in this process; its workers have their own."""
    out, err, known = io.StringIO(), io.StringIO(), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(project)
        patch.setattr(sys, "argv", ["harness", *arguments])
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr("tempfile.tempdir", str(project / "temporary"))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(SystemExit) as left:
            application.main()
    assert "train" not in sys.modules.keys() - known  # a worker alone imports what a user wrote
    assert isinstance(left.value.code, int)
    return left.value.code, out.getvalue(), err.getvalue()
