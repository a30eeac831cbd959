"""Where something happened: the innermost line outside torch and the harness, and the user's own that led to it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.system.replay.sites import Place, innermost
from harness.system.replay.traced import HostSyncError, fake_pass

LIBRARY = "def mean(values):\n    return values.mean().item()\n"
SCRIPT = "import averages\n\n\ndef step(values):\n    return averages.mean(values)\n"


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Tensor], Tensor]:
    """A script's step that calls an installed library, which reads a value on the host."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "averages.py").write_text(LIBRARY)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    for name in ("averages", "script"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import script  # type: ignore[import-not-found]

    found: Callable[[Tensor], Tensor] = script.step
    return found


def test_a_library_that_waits_is_named_with_the_users_line_that_calls_it(step: Callable[[Tensor], Tensor]) -> None:
    batch = torch.ones(3)
    with pytest.raises(HostSyncError, match=r"^averages\.py:2: .*, called at script\.py:5 in step"):
        fake_pass(lambda: step(batch), dict)


def test_code_generated_by_torch_compile_is_skipped_when_the_users_line_is_searched() -> None:
    frames = [("/home/u/script.py", 3), ("/tmp/torchinductor_u/ab/cab.py", 40)]
    assert innermost(frames) == Place("script.py", 3)
