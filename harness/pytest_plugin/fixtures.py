"""Provide two fixtures for Python tests: `verify_contract` verifies a claim, and `check_step` tries a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.api import session
from harness.api.session import VerifyOptions
from harness.contract.load import LoadedContract, load_contracts, problems
from harness.contract.schema import Contract, Workload
from harness.contract.strict_yaml import nearest
from harness.errors import ExitCode, HarnessError, UsageError, escaped, escaped_lines
from harness.evidence.files import first_error
from harness.evidence.plan_records import Unit
from harness.first_contract.answers import Answers, headline_of
from harness.first_contract.choosing import FEWEST, compares, fair_trial
from harness.first_contract.draft import Draft, arms_here
from harness.first_contract.step_source import find_step_source
from harness.first_contract.trying import Tried, at_baseline, try_step
from harness.judging.verdict import Status, Verdict
from harness.pytest_plugin.items import failure_text, properties
from harness.pytest_plugin.shared_runs import PlannedContract, SharedRuns

# The fixture `verify_contract`: a Python test verifies a claim for its own system.
#
#     @pytest.mark.contract("F-GRAPH-BWD-001")
#     def test_my_trainer(verify_contract):
#         verify_contract(system="my_trainer.system:MySystem", workload="tiny", batch_size=8)
#
# Overrides change the workload. They cannot change what the claim requires.


class ContractVerifier:
    """A callable that executes the runs of one unit in worker processes and judges the unit.

    root: folder for the runs.
    """

    def __init__(self, node: pytest.Item, root: Path) -> None:
        self._node, self._root = node, root

    def __call__(
        self,
        claim: str | None = None,
        *,
        contracts: Path | str | None = None,
        system: str | None = None,
        workload: str | None = None,
        **overrides: Any,
    ) -> Verdict:
        """Verify one unit. Return its verdict if the unit holds, skip the test if the unit is undecided or was not run,
        and otherwise fail the test. Under `--contract-gate`, fail the test instead of skipping it.

        claim: by default the claim in the test's marker `contract`. contracts: a file or folder, by default the ini
        option `contract_paths`. system: `module:attribute`, used instead of the contract's system. workload: by default
        the first workload that this machine can decide. overrides: fields of the workload (`steps`, `batch_size`, …).
        Unknown names and invalid overrides fail the test with a message.
        """
        __tracebackhide__ = True
        try:
            name = claim or self._marked()
            loaded = _contract_of(name, self._paths(contracts))
            planned, unit = _planned(_with_system(loaded, system), name, workload, overrides)
        except HarnessError as error:
            problem = str(error)
        else:
            return self._verified(planned, unit)
        pytest.fail(escaped_lines(problem))

    def _verified(self, planned: PlannedContract, unit: Unit) -> Verdict:
        __tracebackhide__ = True
        verdict, evidence = SharedRuns(self._root).judged(planned, unit)
        self._node.user_properties.extend(properties(verdict))
        if verdict.status is Status.PASS:
            return verdict
        undecided = verdict.status in {Status.INCONCLUSIVE, Status.NOT_RUN}
        if undecided and not self._node.config.getoption("--contract-gate"):
            pytest.skip(escaped(f"{verdict.status} {verdict.reason}: {verdict.message}"))
        pytest.fail(escaped_lines(failure_text(planned.loaded, planned.claim(unit.claim), verdict, evidence)))

    def _marked(self) -> str:
        marker = self._node.get_closest_marker("contract")
        if marker is None or not marker.args:
            raise UsageError(
                "`verify_contract` needs a claim, from its argument `claim` or from the test's marker `contract`",
                where=self._node.nodeid,
                remedy='write @pytest.mark.contract("CLAIM-ID") above the test',
            )
        return str(marker.args[0])

    def _paths(self, contracts: Path | str | None) -> list[Path]:
        if contracts is not None:
            return [Path(contracts)]
        return [Path(path) for path in self._node.config.getini("contract_paths")]


def _contract_of(claim: str, paths: Sequence[Path]) -> LoadedContract:
    """Return the contract that has the claim. Raises UsageError if there is none, or more than one."""
    contracts = load_contracts(paths) if paths else []
    known = {one.id: loaded for loaded in contracts for one in loaded.contract.claims}
    having = [loaded for loaded in contracts if any(one.id == claim for one in loaded.contract.claims)]
    if len(having) > 1:
        names = " and ".join(str(loaded.path) for loaded in having)
        raise UsageError(
            "exactly one contract must have the claim",
            got=f"'{claim}' in {names}",
            remedy="name one contract file with contracts=",
        )
    if claim not in known:
        places = ", ".join(map(str, paths)) or "`contract_paths`, which is empty"
        raise UsageError("no contract has this claim", where=places, got=f"'{claim}'", remedy=nearest(claim, known))
    return known[claim]


def _with_system(loaded: LoadedContract, system: str | None) -> LoadedContract:
    """Return the contract with `system` instead of its own system. An arm that names a system keeps the system that it
    names."""
    if system is None:
        return loaded
    return replace(loaded, contract=loaded.contract.model_copy(update={"system": system}))


def _planned(
    loaded: LoadedContract, claim: str, workload: str | None, overrides: dict[str, Any]
) -> tuple[PlannedContract, Unit]:
    """Return a plan with one unit of the claim, and this unit.

    The unit is on `workload`. If `workload` is None, the unit is on the claim's first workload that this machine can
    decide or, if there is none, on the claim's first workload.
    """
    changed = loaded
    if overrides:
        names = [workload] if workload is not None else list(loaded.contract.workloads)
        changed = replace(loaded, contract=_overridden(loaded.contract, names, overrides))
    options = session.VerifyOptions(claims=(claim,), workloads=(workload,) if workload is not None else ())
    plan = session.plan_contracts([changed], options)
    if not plan.units:
        raise UsageError(
            "a claim can be verified only on a workload that it names", got=f"'{workload}', which {claim} does not name"
        )
    unit = next((unit for unit in plan.units if unit.obstacle is None), plan.units[0])
    return PlannedContract(changed, plan), unit


def _overridden(contract: Contract, names: Sequence[str], overrides: dict[str, Any]) -> Contract:
    """Return the contract with changed fields of the named workloads. Raises UsageError if the result is not valid."""
    workloads = dict(contract.workloads)
    for name in names:
        if name not in workloads:
            raise UsageError("the workload must be in the contract", got=f"'{name}'", remedy=nearest(name, workloads))
        try:
            workloads[name] = Workload.model_validate({**workloads[name].model_dump(), **overrides})
        except ValidationError as error:
            raise UsageError("an override must be a field of a workload", where=name, got=first_error(error)) from error
    changed = contract.model_copy(update={"workloads": workloads})
    for problem in problems(changed):
        raise UsageError(problem.rule, where=contract.id, got=problem.got, remedy=problem.remedy)
    return changed


# The fixture `check_step`: a Python test tries a step as `harness try` does, without a contract. Example:
# `check_step("train.py:make_step", baseline="main")`.

# number of steps: a prime number like the default of `harness try`, but smaller, so that a test takes only seconds
STEPS = 23


class StepCheck:
    """A callable that tries a step in worker processes, and keeps no files. It fails the test if an answer of the trial
    is `no` or an error."""

    def __init__(self, config: pytest.Config) -> None:
        self._gate = bool(config.getoption("--contract-gate"))

    def __call__(self, step: str, *, baseline: str | None = None, steps: int = STEPS, speed: bool = False) -> None:
        """Try the step as `harness try` does. Fail the test if an answer of this trial is `no` or an error. Skip the
        test if nothing was decided, or if it is undecided whether both arms train the same.

        step: `module:function` or `path/to/file.py:function`, relative to the working directory. baseline: a branch,
        tag or commit that has the function, with whose version the step is compared. Without a baseline, the captured
        step is compared with the plain step. speed: True to also time the step on a GPU, which takes minutes.

        Under `--contract-gate`, an undecided answer fails the test. A step or commit that does not exist fails the test
        with a message.
        """
        __tracebackhide__ = True
        try:
            if steps < FEWEST:
                raise UsageError(f"`steps` must be at least {FEWEST}", got=f"steps={steps}")
            arms = arms_here(compiled=False, speed=speed)
            draft = at_baseline(Draft(find_step_source(step), steps, arms), baseline)
            code, text = self._answers(draft)
        except HarnessError as error:
            code, text = error.exit_code, str(error)
        if code == ExitCode.UNDECIDED and not self._gate:
            pytest.skip(escaped_lines(text))
        if code != ExitCode.HELD:
            pytest.fail(escaped_lines(text))

    def _answers(self, draft: Draft) -> tuple[ExitCode, str]:
        options = VerifyOptions(gate=self._gate, command=("pytest",))

        def run(other: Draft, _which: str = "") -> Tried:
            return try_step(other, reports=None, options=options)

        tried, fair = fair_trial(draft, run, run)
        result = headline_of(tried)
        asked = [each.status for each in tried.judgement.verdicts if each.claim == fair.claim_id(fair.same_name)]
        # exit code 0 is not enough: the claim that both arms train the same must have held
        open_ = result.code == ExitCode.HELD and asked != [Status.PASS]
        text = "\n".join([*Answers().rest(tried), "", compares(fair), str(result)])
        return ExitCode.UNDECIDED if open_ else result.code, text
