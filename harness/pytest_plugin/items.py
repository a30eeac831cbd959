"""Collect contract files in pytest with a test item for each unit, write the texts of failures, and report all verdicts
at the end of the session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from harness.api import session
from harness.contract.accepted_baselines import AcceptedBaseline
from harness.contract.load import LoadedContract, id_again, load_contracts, selected
from harness.contract.schema import AnyClaim, parts_of
from harness.contract.shared import ACCEPTED_FILE, SUFFIXES, SharedFiles, files_of_folder, is_signed_file, real
from harness.contract.signed_entries import load, unmatched
from harness.contract.waivers import Waiver
from harness.errors import (
    ContractError,
    ContractErrors,
    ExitCode,
    HarnessError,
    escaped,
    escaped_command,
    escaped_lines,
)
from harness.evidence.plan_records import Unit
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Status, Verdict
from harness.kinds.trajectory.model import TrajectoryMatch
from harness.lint import refuse_lint_errors
from harness.pytest_plugin.shared_runs import PlannedContract, SharedRuns, plan_file
from harness.report.advice import advice_of, brief, telling_figures
from harness.report.github_actions import annotate, append_step_summary
from harness.report.text import figure, line, words

# Figures whose value is a step at which two series differ. The most informative figure comes first.
_STEPS = ("first_differing_step", "first_exceeding_step", "first_non_finite_step", "max_abs_difference_step")
FIGURES = 6  # largest number of figures in the text of a failure
STATUS = "contract.status"  # name of a property that every test with a verdict gets


def properties(verdict: Verdict) -> list[tuple[str, object]]:
    """Return the JUnit properties of a verdict: status, reason, figures and denominators."""
    facts: list[tuple[str, object]] = [(STATUS, verdict.status.value), ("contract.reason", verdict.reason)]
    facts += [(f"figure.{name}", figure(value)) for name, value in verdict.figures.items()]
    facts += [(f"denominator.{name}", number) for name, number in verdict.denominators.items()]
    return facts


def failure_text(loaded: LoadedContract, claim: AnyClaim, verdict: Verdict, evidence: Sequence[RunEvidence]) -> str:
    """Return the lines that describe a unit that did not hold, with a few of its figures. The properties of the test
    have all figures."""
    lines = [f"{verdict.status.value} {verdict.reason}: {line(verdict.message, 600)}", ""]
    lines += [f"    {text}" for text in _both_values(claim, verdict, evidence)]
    lines += [
        f"    {words(name)}: {figure(value)}" for name, value in list(telling_figures(verdict, claim).items())[:FIGURES]
    ]
    asked = ("harness", "verify", str(loaded.path))
    told = brief(advice_of(verdict, claim, evidence, asked, loaded.contract.systems()))
    return "\n".join([*lines, "", *(f"{each.label}: {each.text}" for each in told)])


def _both_values(claim: AnyClaim, verdict: Verdict, evidence: Sequence[RunEvidence]) -> Iterator[str]:
    """Yield the losses of both arms with all digits, at the step at which they differ according to the verdict's
    figures."""
    step = next((_step(verdict, name) for name in _STEPS if _step(verdict, name) is not None), None)
    for part in parts_of(claim):
        if step is None or not isinstance(part, TrajectoryMatch):
            continue
        for arm in (part.candidate, part.baseline):
            for run in evidence:
                if arm in run.arms and step < len(run.arms[arm][0].series.loss):
                    yield f"step {step}, loss of {arm}: {float(run.arms[arm][0].series.loss[step])!r}"


def _step(verdict: Verdict, name: str) -> int | None:
    """Return the step that is the value of the verdict's figure `name`. Return None if there is no such figure.

    In the verdict, the name of a claim's part can precede the figure's name.
    """
    for key, value in verdict.figures.items():
        if key.rpartition(".")[2] == name and isinstance(value.value, int):
            return value.value
    return None


UNDECIDED = (Status.INCONCLUSIVE, Status.NOT_RUN)
_PROPERTY = "contract.unit"
_ASKING = ("--contract-gate", "--contract-workload", "--contract-tag")
# names of options that can leave out units
_SELECTING = ("keyword", "--contract-workload", "--contract-tag", "collectonly")
_FILES = pytest.StashKey[dict[Path, Path]]()
_FIRST = pytest.StashKey[dict[str, LoadedContract]]()


def options_of(config: pytest.Config) -> session.VerifyOptions:
    """Return the options that pytest's command line gives for contracts."""
    return session.VerifyOptions(
        workloads=tuple(config.getoption("--contract-workload")),
        tags=tuple(config.getoption("--contract-tag")),
        gate=bool(config.getoption("--contract-gate")),
        # The folder in which pytest was called. Tests may change the working directory.
        reports=config.invocation_params.dir / config.getoption("--contract-reports"),
        command=("pytest", *config.invocation_params.args),
    )


def shared_runs(config: pytest.Config) -> SharedRuns:
    """Return the object that executes runs for all processes of this session."""
    root = getattr(config, "workerinput", {}).get("contract_runs")
    return SharedRuns(Path(root) if root else config.pluginmanager.getplugin("contract-reporter").root)


def contract_files(config: pytest.Config) -> dict[Path, Path]:
    """Return the contract files in `contract_paths`, by their real paths.

    In a folder, these are the files that commands of the harness read as contracts.
    """
    if _FILES not in config.stash:
        named = [Path(path) for path in config.getini("contract_paths")]
        found = [file for path in named for file in (files_of_folder(path).contracts if path.is_dir() else [path])]
        for file in found:
            if escaped(file) != str(file):  # pytest prints file names without escaping them
                raise pytest.UsageError(
                    escaped(f"{file}: the name of a contract file must be printable; rename the file")
                )
        _refuse_unknown_tags(found, config.getoption("--contract-tag"))
        config.stash[_FILES] = {real(file): file for file in found}
    return config.stash[_FILES]


def asked_for(config: pytest.Config) -> bool:
    """Return True if contracts were requested. Otherwise they are not run, because training often takes minutes.

    Contracts are requested by a mark expression (`-m`) that selects `contract`, by an option `--contract-…`, or by an
    argument within `contract_paths`. Under xdist the controller decides for all workers.
    """
    given = getattr(config, "workerinput", {}).get("contracts_asked")
    if given is not None:
        return bool(given)
    if any(config.getoption(name) for name in _ASKING) or (_takes(config, "contract") and not _takes(config)):
        return True
    named = [real(Path(path)) for path in config.getini("contract_paths")]
    by_argument = config.args_source is pytest.Config.ArgsSource.ARGS
    return by_argument and any(path.is_relative_to(place) for path in _paths(config) for place in named)


def not_asked_for(config: pytest.Config) -> list[Path]:
    """Return the contract files that this pytest session skips: they are below the paths on its command line, but no
    option or argument requests that contracts are run (see `asked_for`)."""
    if asked_for(config) or not _takes(config, "contract"):
        return []
    return [file for place, file in contract_files(config).items() if any(map(place.is_relative_to, _paths(config)))]


def _paths(config: pytest.Config) -> list[Path]:
    return [real(config.invocation_params.dir / word.partition("::")[0]) for word in config.args]


def _takes(config: pytest.Config, *marks: str) -> bool:
    """Return True if the expression of `-m` selects an item with these marks.

    Return False for an invalid expression, because pytest itself reports the error.
    """
    expression = config.getoption("markexpr")
    try:
        return not expression or Expression.compile(expression).evaluate(lambda name, /, **_: name in marks)
    except Exception:  # a SyntaxError, or an error of another class in pytest 8
        return False


def _planned(config: pytest.Config, path: Path, workloads: Sequence[str] = ()) -> PlannedContract:
    named = [Path(each) for each in config.getini("contract_paths")]
    return plan_file(path, session.VerifyOptions(workloads=tuple(workloads)), named)


def _refuse_unknown_tags(files: Sequence[Path], tags: Sequence[str]) -> None:
    if tags:
        try:
            selected(load_contracts(files), tags)
        except HarnessError as error:
            raise pytest.UsageError(escaped_lines(error)) from error


class ContractFile(pytest.File):
    """A contract file, as a collector of pytest. Its items are the contract's units."""

    def collect(self) -> Iterator[ContractItem]:
        options = options_of(self.config)
        try:
            known = _planned(self.config, self.path)
            if not self._is_first(known.loaded):
                return
            refuse_lint_errors([known.loaded], known.signed)
            wanted = [name for name in options.workloads if name in known.loaded.contract.workloads]
            if options.workloads and not wanted:
                return
            planned = _planned(self.config, self.path, wanted) if wanted else known
        except HarnessError as error:
            raise self.CollectError(escaped_lines(error)) from error
        contract, tags = planned.loaded.contract, set(options.tags)
        wanted_claims = {
            claim.id for claim in contract.claims if not tags or not tags.isdisjoint(contract.tags_of(claim))
        }
        for unit in planned.plan.units:
            if unit.claim not in wanted_claims:
                continue
            item = ContractItem.from_parent(self, name=f"{unit.claim}[{unit.workload}]", planned=planned, unit=unit)
            item.add_marker("contract")
            yield item

    def _is_first(self, loaded: LoadedContract) -> bool:
        """Return False if this file was already collected under another path.

        Raises ContractError if another file has the same contract id.
        """
        first = self.config.stash.setdefault(_FIRST, {}).setdefault(loaded.contract.id.casefold(), loaded)
        if real(first.path) != real(loaded.path):
            raise id_again(first, loaded)
        return first.path == loaded.path


class ContractItem(pytest.Item):
    """One unit, as a test item of pytest. The unit's runs are executed in the set-up of the test, so that pytest
    reports a broken run as an error and not as a failure."""

    def __init__(self, *, planned: PlannedContract, unit: Unit, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.planned, self.unit = planned, unit
        self.verdict: Verdict | None = None
        self._failure = ""
        # Record these properties now. If a mark skips the item before its set-up, the item must still count as
        # requested.
        self.user_properties.append((_PROPERTY, unit.model_dump_json()))
        self.user_properties.append(("contract.file", str(self.path)))

    def setup(self) -> None:
        self.verdict, evidence = shared_runs(self.config).judged(self.planned, self.unit)
        self._failure = failure_text(self.planned.loaded, self.planned.claim(self.unit.claim), self.verdict, evidence)
        self.user_properties.extend(properties(self.verdict))
        if self.verdict.status is Status.ERROR:
            pytest.fail(escaped_lines(self._failure), pytrace=False)

    def runtest(self) -> None:
        assert self.verdict is not None  # noqa: S101 - set-up has run
        gate = bool(self.config.getoption("--contract-gate"))
        waiver = shared_runs(self.config).waiver(self.planned, self.unit)
        if self.verdict.can_be_waived and waiver is not None:
            pytest.xfail(escaped(f"waived by {waiver.owner} until {waiver.expires}: {waiver.reason}"))
        if self.verdict.status is Status.FAIL or (gate and self.verdict.status in UNDECIDED):
            pytest.fail(escaped_lines(self._failure), pytrace=False)
        if self.verdict.status in UNDECIDED:
            pytest.skip(escaped(f"{self.verdict.status} {self.verdict.reason}: {self.verdict.message}"))

    def reportinfo(self) -> tuple[Path, int, str]:
        index = next(i for i, claim in enumerate(self.planned.loaded.contract.claims) if claim.id == self.unit.claim)
        number, _ = self.planned.loaded.position(("claims", index))
        return self.path, number - 1, f"{self.unit.claim} on {self.unit.workload}"


class ContractReporter:
    """Collects the judged units of all processes, writes their run directory, and sets pytest's exit code. It exists
    only in the controlling process."""

    def __init__(self, config: pytest.Config, root: Path) -> None:
        self.root, self._config = root, config
        self._asked: dict[str, tuple[Path, Unit]] = {}  # units that pytest reached, by node id
        self._units: dict[str, tuple[Path, Unit]] = {}  # units that were judged, by node id
        self._left_out = False
        self._other_failed = False
        self._judgement: session.Judgement | None = None
        self._problem: str | None = None
        self._not_judged: list[Path] = []
        self._verified = 0  # number of units that the fixture `verify_contract` judged
        self._shut_by_nothing = False
        self._invalid = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record whether a contract file was refused.

        A contract file was refused if the report about its failed collection has no traceback. If the collection failed
        for another reason, this report has a traceback.
        """
        of_contracts = Path(report.nodeid).suffix.lower() in SUFFIXES
        self._invalid |= report.failed and of_contracts and not hasattr(report.longrepr, "reprtraceback")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if _PROPERTY in properties:
            unit = Unit.model_validate_json(str(properties[_PROPERTY]))
            asked = self._asked.setdefault(report.nodeid, (Path(str(properties["contract.file"])), unit))
            if STATUS in properties:
                self._units.setdefault(report.nodeid, asked)
                return
        self._verified += report.when == "call" and STATUS in properties
        self._other_failed |= report.failed

    def finish(self, pytest_session: pytest.Session) -> None:
        """Write the run directory. Replace pytest's exit code if contract items ran, or if a contract was refused.

        A gate stays closed if nothing was judged. If no option or argument restricts the units, a gate also stays
        closed if a contract in `contract_paths` was not judged.
        """
        self._judge_what_ran(pytest_session)
        if self._invalid and pytest_session.exitstatus != pytest.ExitCode.INTERNAL_ERROR:
            pytest_session.exitstatus = ExitCode.INVALID_CONTRACT

    def _judge_what_ran(self, pytest_session: pytest.Session) -> None:
        stopped = pytest_session.shouldstop or pytest_session.shouldfail  # `-x` leaves out units too, with exit code 1
        ended = pytest_session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        self._left_out = ended and self._any_left_out(pytest_session)
        finished = ended and not (stopped or self._left_out)
        options = options_of(self._config)
        self._not_judged = self._contracts_not_judged()
        self._shut_by_nothing = options.gate and self._nothing_was_judged()
        shut = options.gate and (bool(self._not_judged) or self._shut_by_nothing)
        if not self._units:
            if shut and pytest_session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                pytest_session.exitstatus = ExitCode.UNDECIDED
            return
        files = {path for path, _ in self._asked.values()}
        planned = [_planned(self._config, path) for path in sorted(files)]
        asked, units = ([unit for _, unit in some.values()] for some in (self._asked, self._units))
        try:
            self._judgement = SharedRuns(self.root).write_directory(planned, asked, units, options, finished=finished)
        except (HarnessError, OSError) as error:
            self._problem = str(error)
            pytest_session.exitstatus = ExitCode.ERROR
            return
        if finished:
            others = ((ExitCode.VIOLATED, self._other_failed), (ExitCode.UNDECIDED, shut))
            codes = {self._judgement.exit_code, *(code for code, found in others if found)}
            worst = next(code for code in ExitCode if code in codes)
            # If the contracts give exit code 0, keep pytest's exit code. It can be another one, for example because the
            # collection of a test failed.
            pytest_session.exitstatus = worst or pytest_session.exitstatus
        elif pytest_session.exitstatus == pytest.ExitCode.OK:  # a code that was given to `pytest.exit` is kept
            pytest_session.exitstatus = self._judgement.exit_code

    def _any_left_out(self, pytest_session: pytest.Session) -> bool:
        """Return True if the session ended before it reached all units.

        An xdist controller always returns False, because only the workers know the items.
        """
        units = (item for item in pytest_session.items if isinstance(item, ContractItem))
        return not self._config.getoption("collectonly") and any(item.nodeid not in self._asked for item in units)

    def _contracts_not_judged(self) -> list[Path]:
        """Return the contract files in `contract_paths` of which no unit was judged. Return an empty list if an option
        or argument restricts the units.
        """
        if self._is_selection():
            return []
        judged = {real(path) for path, _ in self._units.values()}
        return [file for path, file in contract_files(self._config).items() if path not in judged]

    def _is_selection(self) -> bool:
        config = self._config
        return (
            config.args_source is pytest.Config.ArgsSource.ARGS
            or any(config.getoption(name) for name in _SELECTING)
            or config.getoption("markexpr") not in ("", "contract")
        )

    def _nothing_was_judged(self) -> bool:
        """Return True if contracts were requested but no unit was judged. A `--contract-gate` that only the ini file
        contains does not count as a request."""
        named = "--contract-gate" in self._config.invocation_params.args
        asked = named or bool(self._asked) or self._left_out or not self._is_selection()
        return asked and not (self._units or self._verified or self._config.getoption("collectonly"))

    def _missing(self) -> Iterator[str]:
        """Yield a line about each group of contracts that were not run or not judged, and a line that says why none was
        judged."""
        of_contracts = self._config.getoption("markexpr") == "contract"
        if files := not_asked_for(self._config):
            were = "was" if len(files) == 1 else "were"
            yield f"contracts: {len(files)} of `contract_paths` {were} not run: `pytest -m contract` runs all of them"
        if self._not_judged and (self._units or of_contracts or self._config.getoption("--contract-gate")):
            names = ", ".join(str(file) for file in self._not_judged)
            yield f"contracts: named in `contract_paths`, but not judged: {names}"
        nothing = self._shut_by_nothing or (of_contracts and not self._units and not self._verified)
        if nothing and not contract_files(self._config):
            named = self._config.getini("contract_paths")
            found = f"found no contract in {', '.join(map(str, named))}" if named else "`contract_paths` is not set"
            place = self._config.inipath or "a configuration file"
            yield (
                f"contracts: none was judged; `contract_paths` in {place} must name the contract files or their "
                f'folders, such as contract_paths = ["contracts"]; {found}'
            )
        elif self._shut_by_nothing:
            skipped = (
                "the session ended before any contract was judged"
                if self._left_out
                else "every selected contract was skipped"
            )
            why = (
                skipped
                if self._asked or self._left_out
                else "the tests that pytest was told to run include no contract"
            )
            yield f"contracts: none was judged, so `--contract-gate` stays closed: {why}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._problem is not None:
            problem = f"contracts: the run directory could not be written: {self._problem}"
            terminalreporter.write_line(escaped(problem), red=True)
        for missing in self._missing():
            terminalreporter.write_line(escaped(missing), yellow=True)
        if self._judgement is None:
            return
        terminalreporter.section("contracts")
        terminalreporter.write_line(escaped(self._judgement.view.count_line()), bold=True)
        terminalreporter.write_line(escaped(self._judgement.headline), bold=True)
        start, directory = self._config.invocation_params.dir, self._judgement.run_directory
        if directory is not None and directory.is_relative_to(start):
            directory = directory.relative_to(start)
        terminalreporter.write_line(escaped(f"report: {directory}/report.html"))
        view = self._judgement.view
        annotate(view, lambda annotation: terminalreporter.write_line(escaped_command(annotation)))
        append_step_summary(view)


_SHARED_FILES = pytest.StashKey[set[Path]]()


def files_beside(config: pytest.Config) -> set[Path]:
    """Return the real paths of two kinds of files in the folders of `contract_paths`: files that contracts share, and
    files of signed entries (waivers and accepted baselines)."""
    if _SHARED_FILES not in config.stash:
        folders = [files_of_folder(path) for path in _named(config) if path.is_dir()]
        config.stash[_SHARED_FILES] = {real(file) for found in folders for file in (*found.shared, *found.signed)}
    return config.stash[_SHARED_FILES]


class FileBeside(pytest.File):
    """A file that contracts share, or a file of signed entries. The plugin only checks the file, which has no test
    items."""

    def collect(self) -> Iterator[pytest.Item]:
        try:
            if is_signed_file(self.path):
                _refuse_entries_of_no_contract(self.path, _named(self.config))
            else:
                SharedFiles().read(self.path)
        except HarnessError as error:
            raise self.CollectError(escaped_lines(error)) from error
        yield from ()


def _named(config: pytest.Config) -> list[Path]:
    return [Path(path) for path in config.getini("contract_paths")]


def _refuse_entries_of_no_contract(path: Path, named: Sequence[Path]) -> None:
    """Raise ContractErrors if signed entries in the file `path` name unknown contracts. pytest reports errors in
    entries of known contracts at the file of the contract."""
    signed = load(path, AcceptedBaseline if is_signed_file(path, ACCEPTED_FILE) else Waiver)
    try:
        contracts = load_contracts(named)
    except ContractError:  # pytest reports this error at the file of the contract
        return
    known = {loaded.contract.id for loaded in contracts}
    strangers = [entry for entry in signed if entry.contract not in known]
    if errors := unmatched(strangers, contracts, all_known=True):
        raise ContractErrors(errors)
