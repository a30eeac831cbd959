"""Execute both arms of a `where` run plain and observed, and compare the results of both executions of each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from claims_in_process import executed
from needed_programs import absent
from planning import NO_GPU

from harness.contract.load import load_contract
from harness.evidence.plan_records import Run
from harness.evidence.run_records import OBSERVED, UNOBSERVED, ObservedStep
from harness.planning.plan import plan, where_run
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

EXAMPLES = Path(__file__).parents[2] / "examples"
# Of an example: the claim whose arms are executed, and the package that it needs.
CLAIMS: dict[str, tuple[str, str | None]] = {
    "plain_loop": ("PLAIN-BITS", None),
    "accelerate_loop": ("ACCELERATE-TRAJECTORY", "accelerate"),
    "peft_lora": ("PEFT-TRAJECTORY", "peft"),
    "transformers_trainer": ("TRAINER-TRAJECTORY", "transformers"),
}


def run_of_example(example: str, figures: Mapping[str, object]) -> Run:
    """Return the run that finds the first difference of an example's claim. figures: those of its verdict."""
    name, package = CLAIMS[example]
    if package is not None and find_spec(package) is None:
        absent(package)
    loaded = load_contract(EXAMPLES / example / "contract.yaml")
    planned = plan(
        [loaded],
        claims=[name],
        machine=NO_GPU,
        describe=lambda system: resolve(system).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    [claim] = [each for each in loaded.contract.claims if each.id == name]
    unit = next(each for each in planned.units if each.obstacle is None)
    run = where_run(claim, unit, [each for each in planned.runs if each.id in unit.runs], figures)
    assert run is not None
    return run


def observed_steps(run: Run, folder: Path, last: int) -> tuple[Run, Sequence[ObservedStep]]:
    """Execute the arms of a run plain and observed, up to the step `last`."""
    run = run.model_copy(update={"settings": {**run.settings, "last": last, "observed": True, "limit_s": 600.0}})
    return run, executed(run, folder / "where").observed_steps


def require_own_bits(run: Run, steps: Sequence[ObservedStep]) -> None:
    """Assert that observed steps end with the bits of unobserved steps, including everything that graphs launched."""
    known = {(each.arm, each.replica): each for each in steps}
    for arm, planned in run.arms.items():
        plain, seen = known[arm, UNOBSERVED], known[arm, OBSERVED]
        for part in ("before", "batch", "gradients", "after"):
            pairs = [getattr(each, part) for each in (plain, seen)]
            assert {name for name in {**pairs[0], **pairs[1]} if pairs[0].get(name) != pairs[1].get(name)} == set(), (
                part
            )
        assert plain.loss == seen.loss
        assert seen.operators
        assert seen.unseen == 0, arm
        assert any(each.replayed for each in seen.operators) is (planned.arm.capture != "none"), arm
        assert 0 < (seen.bytes or 0) < 2**26, arm
