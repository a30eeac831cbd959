"""Print the output of commands on stdout: text that begins with the number of units by outcome, or one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.api import session
from harness.devices import environment
from harness.errors import ExitCode
from harness.numbers import counted, dump_json
from harness.platform.standard_streams import (
    print_error,
    print_json,
    print_line,
    print_lines,
    print_workflow_command,
)
from harness.report.github_actions import annotate

if TYPE_CHECKING:
    from harness.cli.forecast import Forecast
    from harness.evidence.plan_records import Run
    from harness.extras.fleet.job import Outcome, Shard


def print_judgement(judgement: session.Judgement, *, as_json: bool) -> None:
    """Print the verdicts on stdout: as one JSON object, or as text, with annotations under GitHub Actions."""
    if as_json:
        print_json(session.judgement_json(judgement))
        return
    from harness.report.terminal import print_results

    print_results(judgement.view)
    if judgement.run_directory is not None and (judgement.run_directory / "report.html").exists():
        print_line(f"report: {judgement.run_directory / 'report.html'}", whole=True)
        print_manifest(judgement)
    annotate(judgement.view, print_workflow_command)


def print_manifest(judgement: session.Judgement) -> None:
    """Print the digest of the run's manifest, if the run has one. With the noted digest, a reader can later detect a
    change of the directory, even if the manifest was written again after the change."""
    if judgement.manifest is not None:
        print_line(f"manifest: sha256:{judgement.manifest}", whole=True)


def print_costs(judgement: session.Judgement) -> None:
    """Print the seconds of the runs for each kind of cost, such as imports. Print nothing if no times were recorded."""
    from harness.report.sections.costs import summary

    if costs := summary(judgement.view.costs):
        print_line(costs)


def print_forecast(forecast: Forecast, *, as_json: bool) -> ExitCode:
    """Print the planned units and runs. Return ERROR if a unit is certain to get the verdict ERROR, otherwise HELD."""
    from harness.cli.forecast import shown

    if as_json:
        print_json(dump_json(forecast.model_dump(mode="json"), indent=2))
    else:
        print_lines(shown(forecast))
    return ExitCode.ERROR if forecast.broken else ExitCode.HELD


def recorded_in(reports: Path) -> Callable[[Sequence[Run]], dict[str, float]]:
    """Return a function that estimates the seconds of runs, for the progress display (`Progress`). The estimates are
    based on the runs that are recorded in the folder `reports`."""

    def seconds(runs: Sequence[Run]) -> dict[str, float]:
        from harness.cli.forecast import Estimates
        from harness.execution.sharing import lanes

        found, _ = Estimates(environment.machine(), reports).of(runs)
        return {run.id: found[run.id].seconds / len(lanes(run)) for run in runs if run.id in found}

    return seconds


def print_shard(shard: Shard, place: str, outcome: Outcome | None) -> None:
    """Print one line on stderr about a shard that has ended. A shard is a job that runs a part of the contracts."""
    if outcome is None:
        print_error(f"{shard.name}{f' on {place}' if place else ''}: its job ended without a result")
        return
    again = f", restarted {counted(outcome.restarts, 'time')}" if outcome.restarts else ""
    where = place or outcome.node
    print_error(f"{shard.name}{f' on {where}' if where else ''}: exit code {outcome.code}{again}")
