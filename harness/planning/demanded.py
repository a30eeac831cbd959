"""Find the first difference between the runs that were made for a unit and the runs that its contract requires.

Texts, bounds and guards are not part of a run: evidence can be judged by those of any contract. Everything else in
a contract decides what is run, so evidence of another workload, arm, system or probe setting is of something else.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.contract.claims import AnyClaim, parts_of
from harness.contract.schema import Contract
from harness.evidence.plan_records import Run
from harness.evidence.serving import DEMANDED, NONE, Difference, differences
from harness.planning.run_builder import RunBuilder

ONE = "one"


def first_difference(
    contract: Contract,
    claim: AnyClaim,
    workload: str,
    made: Sequence[Run],
    *,
    unread: int = 0,
    fault: str | None = None,
    baseline: str | None = None,
) -> Difference | None:
    """Return the first thing in which `made`, the runs that decided a unit, are not what the contract requires.

    None where every part of the claim has the runs that it requires, and every run is required by some part.
    unread: how many runs of the unit left nothing that says what they were; their absence is reported elsewhere.
    fault: the fault that was planted on purpose, and that a run may have. baseline: the commit of the baselines.
    """
    for name in ("data", "model_directory"):  # a contract names neither; runs that are judged together share them
        if len({getattr(run, name) for run in made}) > 1:
            return Difference(name, "one for all runs", "several")
    used: set[int] = set()
    for index, part in enumerate(parts_of(claim)):
        builder = RunBuilder(contract, workload, None, None, None, baseline)
        builder.add(claim, index, part)
        demanded = builder.runs()
        # the position of a run that serves each required run, or None; equal runs differ by their process
        serving = [
            next((number for number, run in enumerate(made) if _first(wanted, run, fault) is None), None)
            for wanted in demanded
        ]
        used |= {number for number in serving if number is not None}
        if serving.count(None) > unread:
            return _nearest_difference(demanded[serving.index(None)], made, fault)
    stray = next((run for number, run in enumerate(made) if number not in used), None)
    return None if stray is None else Difference(f"run {stray.id}", NONE, f"a {stray.probe} run")


def arms_demanded(contract: Contract, claim: AnyClaim, workload: str) -> set[str]:
    """Return every arm that the claim's runs execute on this workload, controls included."""
    builder = RunBuilder(contract, workload, None, None, None, None)
    for index, part in enumerate(parts_of(claim)):
        builder.add(claim, index, part)
    return {arm for run in builder.runs() for arm in run.arms}


def _nearest_difference(wanted: Run, made: Sequence[Run], fault: str | None) -> Difference:
    alike = [run for run in made if run.probe == wanted.probe]
    if not alike:
        return Difference(f"a {wanted.probe} run", ONE, NONE)
    nearest = next((run for run in alike if run.process == wanted.process), alike[0])
    return _first(wanted, nearest, fault) or Difference(f"a {wanted.probe} run for each use", ONE, NONE)


def _first(wanted: Run, made: Run, fault: str | None) -> Difference | None:
    unplanted = made.model_copy(update={"fault": None}) if made.fault == fault else made
    return next(differences(unplanted, wanted, DEMANDED, {arm: arm for arm in wanted.arms}), None)
