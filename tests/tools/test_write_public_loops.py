"""The page about public loops has what its script would write: lines added, commands, and a verdict for each change."""

from __future__ import annotations

import pytest
import write_public_loops
from write_public_loops import LOOPS, Loop

PAGE = write_public_loops.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.clone)
def test_a_loop_stands_there_with_all_changes(loop: Loop) -> None:
    before, _, rest = PAGE.partition(write_public_loops.section(loop))
    assert before.startswith(write_public_loops.HEAD)
    rows = [line.split(" | ") for line in rest.partition("\n\n")[0].splitlines()[2:]]
    assert [(row[0].removeprefix("| "), row[1].partition(":")[0]) for row in rows] == [
        (change.what, change.verdict) for change in loop.changes
    ]
    added = [line[1:].strip() for line in loop.diff.splitlines() if line.startswith("+")]
    assert len(added) == 3
    assert added[0] == "import harness"
