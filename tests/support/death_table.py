"""Verify a contract whose arms die, each by one cause in one phase, and report what is not as it must be.

A combination has its own arm and claim. In addition each workload has the claim SOUND, which must hold. The arms of a
workload share a run: if a worker dies, its claim is an ERROR, and another worker executes the rest.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from marked_processes import left_after

from harness.api import session
from harness.api.session import VerifyOptions
from harness.cli.application import application
from harness.commits.checkout import Checkout
from harness.contract.load import LoadedContract
from harness.errors import ExitCode
from harness.judging.verdict import Verdict
from harness.planning.plan import Plan

SYSTEM = "deadly_system:DeadlySystem"
MARK = "DEATH_TABLE"  # a variable that every process of a verification has
LEFT_S = 5.0  # for what was killed to be gone


@dataclass(frozen=True)
class Combination:
    """One arm's death. named: texts of which the verdict's message must have one. system: None means SYSTEM."""

    phase: str
    cause: str
    named: tuple[str, ...]
    system: str | None = None

    @property
    def name(self) -> str:
        return f"{self.phase}_{self.cause}"

    def arm(self) -> dict[str, Any]:
        captured = self.phase in {"warm_up", "capture", "replay"}
        own = {"system": self.system} if self.system else {"dies": f"{self.phase}:{self.cause}"}
        return {"capture": "step" if captured else "none", **own}


@dataclass(frozen=True)
class Group:
    """Combinations that share a workload, and so a run, with the run's time limits in seconds."""

    name: str
    combinations: tuple[Combination, ...]
    wall_limit_s: float
    heartbeat_s: float


@dataclass(frozen=True)
class Outcome:
    """The verdict of one combination, and what is wrong with it."""

    combination: Combination
    verdict: Verdict
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        ended = "; ".join(self.problems) or "named"
        return f"{self.combination.name:26} {self.verdict.status:12} {self.verdict.reason:20} {ended}"


def contract_text(groups: Sequence[Group], needs: dict[str, Any], steps: int) -> str:
    """Return a contract with a workload for each group."""
    workload = {"model": "any", "batch_size": 2, "seq_len": 4, "steps": steps, "needs": needs}
    claims = [_claim("SOUND", "again", [group.name for group in groups], steps)]
    claims += [_claim_of(one, group.name, steps, needs) for group in groups for one in group.combinations]
    arms = {one.name: one.arm() for group in groups for one in group.combinations}
    contract = {
        "schema": "contract/v2",
        "id": "deaths",
        "title": "Arms that die cost their own claims",
        "system": SYSTEM,
        # another seed each: equal arms of equal workloads would share a run, and its limits
        "workloads": {group.name: {**workload, "seed": number} for number, group in enumerate(groups)},
        "arms": {"plain": {"capture": "none"}, "again": {"capture": "none", "dies": ""}, **arms},
        "claims": claims,
    }
    return yaml.dump(contract, sort_keys=False, Dumper=_NoAliases)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _claim_of(one: Combination, workload: str, steps: int, needs: dict[str, Any]) -> dict[str, Any]:
    claim = _claim(one.name.upper().replace("_", "-"), one.name, [workload], steps)
    if one.phase == "gradients":
        del claim["guards"], claim["max_abs_difference"]
        claim |= {"kind": "gradient_match", "steps": [0]}
    if one.arm()["capture"] == "step":
        claim["mechanism"] = "cuda_graph" if needs.get("device") == "cuda" else "traced"
    return claim


def _claim(name: str, candidate: str, workloads: list[str], steps: int) -> dict[str, Any]:
    return {
        "id": name,
        "title": "It trains as the plain arm does",
        "kind": "trajectory_match",
        "candidate": candidate,
        "baseline": "plain",
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": steps},
        "judged_on": workloads,
        "why": "Equal arms train equally.",
        "if_fails": "The arm did not die.",
    }


def verified(groups: Sequence[Group], needs: dict[str, Any], *, steps: int, describe_s: float) -> list[Outcome]:
    """Verify all combinations in one directory; find a PASS, an unnamed cause, or a process that is left.

    Problems of all combinations together (exit code, SOUND, `judge --check`, processes) are added to the first outcome.
    """
    paths = [path for path in (str(Path(__file__).parent),) if path not in sys.path]
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {MARK: mark}):
        contract = Path(folder) / "deaths.yaml"
        contract.write_text(contract_text(groups, needs, steps))
        write_modules(Path(folder))
        options = VerifyOptions(gate=True, reports=Path(folder) / "reports", name="run", wall_limit_s=describe_s)
        with (
            patch.object(sys, "path", [*sys.path, *paths, folder]),
            patch.object(session, "plan_contracts", _with_limits(groups)),
        ):
            judgement = session.verify([contract], options)
            general = _exit_code(judgement.exit_code) + _check(judgement.run_directory)
        general += [f"process {process} is left" for process in left_after(f"{MARK}={mark}", LEFT_S)]
    verdicts = {(verdict.claim, verdict.workload): verdict for verdict in judgement.verdicts}
    for group in groups:
        sound = verdicts["SOUND", group.name]
        general += [f"SOUND on {group.name}: {sound.status} {sound.message}"] * (sound.reason != "held")
    outcomes = []
    for group in groups:
        for one in group.combinations:
            verdict = verdicts[one.name.upper().replace("_", "-"), group.name]
            outcomes.append(Outcome(one, verdict, _problems(one, verdict)))
    outcomes[0].problems.extend(general)
    return outcomes


def _with_limits(groups: Sequence[Group]) -> Callable[[Sequence[LoadedContract], VerifyOptions], Plan]:
    """Return a substitute for `plan_contracts` that sets each group's limits in its runs."""
    limits = {each.name: {"wall_limit_s": each.wall_limit_s, "heartbeat_s": each.heartbeat_s} for each in groups}
    planned_as_ever = session.plan_contracts

    def planned(contracts: Sequence[LoadedContract], options: VerifyOptions, checkout: Checkout | None = None) -> Plan:
        plan = planned_as_ever(contracts, options, checkout)
        return Plan(plan.units, [run.model_copy(update=limits[run.workload_name]) for run in plan.runs])

    return planned


def _problems(one: Combination, verdict: Verdict) -> list[str]:
    problems = [] if verdict.status != "PASS" else ["a false PASS"]
    if not any(text in verdict.message for text in one.named):
        problems.append(f"none of {', '.join(map(repr, one.named))} in {verdict.message!r}")
    return problems


def _exit_code(code: ExitCode) -> list[str]:
    return [f"exit code {int(code)}"] * (code != ExitCode.ERROR)


def _check(directory: Path | None) -> list[str]:
    """Return what `harness judge --check` reports against the directory."""
    arguments = ["judge", "--check", str(directory)]
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        code = application(arguments)(arguments, standalone_mode=False)
    return [f"judge --check exits with {code}: {printed.getvalue()}"] * (code != 0)


STRANGER = """\
import sys

from deadly_system import DeadlySystem, misbehave

WHERE, CAUSE = {where!r}, {cause!r}
DESCRIBING = sys.modules["__main__"].__spec__.name == "harness.system.describing"
if WHERE == ("import" if DESCRIBING else "import_in_worker"):
    misbehave(CAUSE)


class System(DeadlySystem):
    def describe(self):
        nonsense = misbehave(CAUSE) if WHERE == "describe" else None
        return super().describe() if nonsense is None else nonsense
"""
STRANGER_PHASES = ("import", "import_in_worker", "describe")


def write_modules(folder: Path) -> None:
    """Write modules `dies_<phase>_<cause>`, whose systems die while they are imported or described."""
    from deadly_system import CAUSES

    for where in STRANGER_PHASES:
        for cause in CAUSES:
            (folder / f"dies_{where}_{cause}.py").write_text(STRANGER.format(where=where, cause=cause))
