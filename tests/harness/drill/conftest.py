from __future__ import annotations

import pytest
from small_drill import run_here, write_contract

from harness.api import drill as fire_drill

FAULTS = ("lost_first_update", "doubled_step", "nan_tail", "no_steps", "missing_run")


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> fire_drill.DrillResult:
    """A drill executed in this process, once for all files; nothing changes its directory."""
    folder = tmp_path_factory.mktemp("drill")
    path = write_contract(folder, ", ".join(FAULTS))
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, folder)
        return fire_drill.drill([path], fire_drill.DrillOptions(reports=folder / "reports", name="drilled"))
