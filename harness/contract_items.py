"""What the pytest plugin collects and reports: a file of units, a unit as an item, the session's verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import session
from harness.contract.schema import AnyClaim
from harness.errors import ExitCode, HarnessError
from harness.evidence.model import Unit
from harness.judge.verdict import Status, Verdict
from harness.report.text import figure, line, words
from harness.shared_runs import PlannedContract, SharedRuns, plan_file

UNDECIDED = (Status.INCONCLUSIVE, Status.NOT_RUN)
_PROPERTY = "contract.unit"


def options_of(config: pytest.Config) -> session.Options:
    """The command line's options for contracts."""
    return session.Options(
        workloads=tuple(config.getoption("--contract-workload")),
        gate=bool(config.getoption("--contract-gate")),
        reports=Path(config.getoption("--contract-reports")),
        command=("pytest", *config.invocation_params.args),
    )


def shared_runs(config: pytest.Config) -> SharedRuns:
    """The runs that this session's processes share."""
    root = getattr(config, "workerinput", {}).get("contract_runs")
    return SharedRuns(Path(root) if root else config.pluginmanager.getplugin("contract-reporter").root)


def properties(verdict: Verdict) -> list[tuple[str, object]]:
    """What JUnit carries of a verdict: status, reason, figures, denominators."""
    facts: list[tuple[str, object]] = [("contract.status", verdict.status.value), ("contract.reason", verdict.reason)]
    facts += [(f"figure.{name}", figure(value)) for name, value in verdict.figures.items()]
    facts += [(f"denominator.{name}", number) for name, number in verdict.denominators.items()]
    return facts


def failure_text(claim: AnyClaim, verdict: Verdict) -> str:
    """A failed unit, read like an assertion: what was seen, the figures, what usually causes it."""
    lines = [f"{verdict.status.value} {verdict.reason}: {line(verdict.message, 600)}", ""]
    lines += [f"    {words(name)}: {figure(value)}" for name, value in verdict.figures.items()]
    lines += [f"    {words(name)} (denominator): {number}" for name, number in verdict.denominators.items()]
    return "\n".join([*lines, "", f"what usually causes this: {line(claim.if_fails, 1000)}"])


class UnitFailed(Exception):  # noqa: N818 - shown as a failed test, never as an error of the harness
    """A unit that did not hold."""


class UnitBroken(Exception):  # noqa: N818
    """A unit that could not be judged because something broke."""


class ContractFile(pytest.File):
    """A contract; its units on this machine."""

    def collect(self) -> Iterator[ContractItem]:
        options = options_of(self.config)
        try:
            known = plan_file(self.path, session.Options())
            wanted = [name for name in options.workloads if name in known.loaded.contract.workloads]
            if options.workloads and not wanted:
                return
            planned = plan_file(self.path, session.Options(workloads=tuple(wanted))) if wanted else known
        except HarnessError as error:
            raise self.CollectError(str(error)) from error
        for unit in planned.plan.units:
            item = ContractItem.from_parent(self, name=f"{unit.claim}[{unit.workload}]", planned=planned, unit=unit)
            item.add_marker("contract")
            yield item


class ContractItem(pytest.Item):
    """One unit. Its runs execute in set-up, so that what breaks there is an error and not a failure."""

    def __init__(self, *, planned: PlannedContract, unit: Unit, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.planned, self.unit = planned, unit
        self.verdict: Verdict | None = None

    def setup(self) -> None:
        self.verdict = shared_runs(self.config).verdict(self.planned, self.unit)
        self.user_properties.append((_PROPERTY, self.unit.model_dump_json()))
        self.user_properties.append(("contract.file", str(self.path)))
        self.user_properties.extend(properties(self.verdict))
        if self.verdict.status is Status.ERROR:
            raise UnitBroken

    def runtest(self) -> None:
        assert self.verdict is not None  # noqa: S101 - set-up has run
        gate = bool(self.config.getoption("--contract-gate"))
        if self.verdict.status is Status.FAIL or (gate and self.verdict.status in UNDECIDED):
            raise UnitFailed
        if self.verdict.status in UNDECIDED:
            pytest.skip(f"{self.verdict.status} {self.verdict.reason}: {self.verdict.message}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if self.verdict is not None and isinstance(excinfo.value, UnitFailed | UnitBroken):
            return failure_text(self.planned.claim(self.unit.claim), self.verdict)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        index = next(i for i, claim in enumerate(self.planned.loaded.contract.claims) if claim.id == self.unit.claim)
        line, _ = self.planned.loaded.position(("claims", index))
        return self.path, line - 1, f"{self.unit.claim} on {self.unit.workload}"


class ContractReporter:
    """In the controlling process: gathers the judged units, writes their run directory, sets the exit code."""

    def __init__(self, config: pytest.Config, root: Path) -> None:
        self.root, self._config = root, config
        self._units: dict[str, tuple[Path, Unit]] = {}
        self._other_failed = False
        self._outcome: session.Outcome | None = None
        self._problem: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if _PROPERTY in properties:
            unit = Unit.model_validate_json(str(properties[_PROPERTY]))
            self._units.setdefault(report.nodeid, (Path(str(properties["contract.file"])), unit))
        elif report.failed:
            self._other_failed = True

    def finish(self, pytest_session: pytest.Session) -> None:
        """Write the run directory; the table's exit code replaces pytest's own when contract items ran."""
        if not self._units:
            return
        options = options_of(self._config)
        files = {path for path, _ in self._units.values()}
        planned = [plan_file(path, session.Options()) for path in sorted(files)]
        units = [unit for _, unit in self._units.values()]
        try:
            self._outcome = SharedRuns(self.root).write_directory(planned, units, options)
        except (HarnessError, OSError) as error:
            self._problem = str(error)
            pytest_session.exitstatus = ExitCode.ERROR
            return
        if pytest_session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            other = ExitCode.VIOLATED if self._other_failed else ExitCode.HELD
            pytest_session.exitstatus = self._outcome.exit_code or other

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._problem is not None:
            terminalreporter.write_line(f"contracts: no run directory could be written: {self._problem}", red=True)
        if self._outcome is None:
            return
        terminalreporter.section("contracts")
        terminalreporter.write_line(self._outcome.counts.line(), bold=True)
        terminalreporter.write_line(f"report: {self._outcome.run_directory}/report.html")
