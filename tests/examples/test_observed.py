"""An observed step of a shipped example ends in the bits of the unobserved one, plain or captured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from claims_in_process import executed
from needed_programs import absent
from planning import NO_GPU

from harness.contract.load import load_contract
from harness.evidence.observed_step import OBSERVED, UNOBSERVED
from harness.planning.plan import plan
from harness.planning.where import where_run
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "plain_loop": ("PLAIN-BITS", None),
    "accelerate_loop": ("ACCELERATE-TRAJECTORY", "accelerate"),
    "peft_lora": ("PEFT-TRAJECTORY", "peft"),
}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_observed_step_ends_in_the_bits_of_the_unobserved_one(example: str, tmp_path: Path) -> None:
    name, package = EXAMPLES[example]
    if package is not None and find_spec(package) is None:
        absent(package)
    loaded = load_contract(ROOT / "examples" / example / "contract.yaml")
    planned = plan(
        [loaded],
        claims=[name],
        machine=NO_GPU,
        describe=lambda system: resolve(system).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    [claim] = [each for each in loaded.contract.claims if each.id == name]
    [unit] = [each for each in planned.units if each.obstacle is None]
    run = where_run(claim, unit, [each for each in planned.runs if each.id in unit.runs], {})
    assert run is not None
    run = run.model_copy(update={"settings": {**run.settings, "last": 0, "observed": True, "limit_s": 600}})
    steps = executed(run, tmp_path / "where").observed_steps
    assert {(each.arm, each.replica) for each in steps} == {
        (arm, n) for arm in run.arms for n in (UNOBSERVED, OBSERVED)
    }
    for arm in run.arms:
        plain, seen = ({each.replica: each for each in steps if each.arm == arm}[n] for n in (UNOBSERVED, OBSERVED))
        assert seen.operators
        of_observer = {"operators": None, "unseen": 0, "bytes": None, "seconds": plain.seconds}
        assert plain == seen.model_copy(update={**of_observer, "replica": UNOBSERVED})
