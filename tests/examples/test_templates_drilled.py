"""The templates' own faults: each is killed on small correct trainers, one for each form of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from field_bug_server import Drill
from field_bugs import ENTRIES, ROOT

PUBLIC = ROOT / "tests" / "support" / "public_trainers.py"


@pytest.mark.parametrize(
    ("entry", "form", "claims"),
    [
        pytest.param(
            PUBLIC,
            "averaged_weights",
            {"CAPTURES", "SAME", "SYNCS", "EVALUATED", "RESUMES"},
            marks=pytest.mark.slow,
        ),
        pytest.param(ENTRIES / "libreyolo_batchnorm_warmup.py", "mended", {"CAPTURES", "SAME"}, marks=pytest.mark.slow),
        (PUBLIC, "recomputed_activations", {"WITHIN"}),
    ],
    ids=["captured by the harness", "captures itself", "optimized otherwise"],
)
def test_every_fault_of_a_template_is_killed(entry: Path, form: str, claims: set[str], drill: Drill) -> None:
    not_held, planted = drill(entry, form)
    assert not_held == []
    assert [each for each in planted if not each["killed"]] == []
    prefix = f"{entry.stem.replace('_', '-').upper()}-"
    assert {each["claim"].removeprefix(prefix) for each in planted} == claims | {"REPEATS", "GRADIENTS"}
