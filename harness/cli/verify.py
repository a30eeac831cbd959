"""`harness verify`: run the planned units, judge them, write a run directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.api import session
from harness.api.rejudge import Known, judged
from harness.cli.arguments import (
    OWN_REPORTS,
    Baseline,
    Claims,
    Data,
    Gate,
    Gpus,
    Heartbeat,
    Json,
    Model,
    Name,
    On,
    Paths,
    PlanOnly,
    Redact,
    Reports,
    Resume,
    Tags,
    Waivers,
    WallLimit,
    Workloads,
    redact_words,
    refuse_plan_of_resumed,
    shared_out,
)
from harness.cli.interruption import GRACE_S, LONG_GRACE_S, interruptible
from harness.cli.printing import print_costs, print_forecast, print_judgement, print_shard, recorded_in
from harness.contract.accepted_baselines import find_signed
from harness.contract.load import load_contracts
from harness.contract.shared import folders_read
from harness.contract.signed_entries import expired_on
from harness.contract.waivers import JUDGE, FilesRead
from harness.devices import environment
from harness.extras.fleet import gate as fleet
from harness.extras.fleet.gate import engine
from harness.extras.fleet.job import gate_shards, units_of
from harness.lint import refuse_lint_errors
from harness.platform.standard_streams import print_lines
from harness.report.github_actions import append_step_summary
from harness.report.terminal import Progress
from harness.run_directory.costs import busy_times


def verify(
    paths: Paths,
    claim: Claims = None,
    tag: Tags = None,
    workload: Workloads = None,
    baseline: Baseline = None,
    fault: Annotated[
        str | None, typer.Option("--fault", help="Plant this fault; the report is that of a drill.")
    ] = None,
    gate: Gate = False,
    plan: PlanOnly = False,
    json: Json = False,
    reports: Reports = OWN_REPORTS,
    name: Name = None,
    data: Data = None,
    model: Model = None,
    waivers: Waivers = None,
    wall_limit: WallLimit = None,
    heartbeat: Heartbeat = None,
    redact: Redact = None,
    on: On = None,
    gpus: Gpus = None,
    resume: Resume = None,
    no_where: Annotated[
        bool, typer.Option("--no-where", help="Do not execute arms again to locate the first difference of a failure.")
    ] = False,
) -> None:
    """Run the planned units, judge them, and write a run directory with its report."""
    options = session.VerifyOptions(
        claims=tuple(claim or ()),
        tags=tuple(tag or ()),
        workloads=tuple(workload or ()),
        fault=fault,
        baseline=baseline,
        gate=gate,
        reports=reports,
        name=name,
        data=data,
        model_directory=model,
        waivers=waivers,
        wall_limit_s=wall_limit,
        heartbeat_s=heartbeat,
        redact=redact,
        resume=resume,
        command=("harness", *sys.argv[1:]),
        where=not no_where,
    )
    narrowing = {"--claim": claim, "--tag": tag, "--workload": workload, "--fault": fault}
    shared = shared_out(on, gpus, {**narrowing, "--plan": plan, "--resume": resume})
    refuse_plan_of_resumed(resume, plan=plan)
    print_lines(folders_read(paths), sys.stderr)
    if plan:
        from harness.cli.forecast import forecast_verify

        with interruptible():
            raise typer.Exit(print_forecast(forecast_verify(paths, options), as_json=json))
    late = expired_on(datetime.now(tz=UTC).date(), find_signed(paths, waivers))
    print_lines((f"{where}: warning: {message}" for where, message in late), sys.stderr)
    with interruptible(LONG_GRACE_S if shared else GRACE_S):
        judgement = verify_on(on, gpus, paths, options) if shared else verify_here(paths, options)
    print_judgement(judgement, as_json=json)
    if not json:
        print_costs(judgement)
    append_step_summary(judgement.view)
    raise typer.Exit(judgement.exit_code)


def verify_here(paths: Sequence[Path], options: session.VerifyOptions) -> session.Judgement:
    """Verify contracts on this machine. If torch is installed, worker processes are started first, so that they import
    modules while the harness reads the contracts and describes the systems."""
    from harness.execution.supervisor import Interpreters

    refuse = partial(refuse_lint_errors, paths=paths, limit_s=options.wall_limit_s)
    with Interpreters() as interpreters:
        if environment.torch_version() is not None and hasattr(os, "killpg"):
            interpreters.begin()
        with Progress(recorded_in(options.reports)) as watch:
            return session.verify(paths, options, watch, interpreters, refuse)


def verify_on(
    on: str | None, gpus: str | None, paths: Sequence[Path], options: session.VerifyOptions
) -> session.Judgement:
    """Verify the claims of the contracts in several jobs of an engine such as Slurm. Then judge the run directories of
    all jobs together."""
    contracts = load_contracts(paths)
    read = FilesRead.of(paths, options.waivers, contracts)
    refuse_lint_errors(contracts, find_signed(paths, options.waivers), paths)
    jobs_of = engine(on, gpus)
    shards = gate_shards(
        contracts, busy_times(units_of(contracts), [options.reports, Path("reports")]), len(jobs_of.places or [""])
    )
    directory = fleet.new_directory(options.reports, options.name)
    given = {
        "--baseline": options.baseline,
        "--data": options.data,
        "--model": options.model_directory,
        "--waivers": options.waivers,
        "--wall-limit": options.wall_limit_s,
        "--heartbeat": options.heartbeat_s,
    }
    passed_on = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    passed_on += [] if options.where else ["--no-where"]
    fleet.run_shards(shards, jobs_of, directory, print_shard, [*passed_on, *redact_words(options.redact)])
    read.require_unchanged(JUDGE)
    known = Known(
        paths, waivers=options.waivers
    )  # judge by `paths`, not by the jobs' copies: a job's code could change a contract for a later job and restore it
    return judged(fleet.run_directories(shards, directory), known, gate=options.gate)[1]
