"""Work out what `verify` and `drill` would do here without doing it: nothing is executed, and nothing written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.api import session
from harness.contract.files_read import FilesRead
from harness.contract.load import load_contracts
from harness.contract.waivers import find_waivers
from harness.devices import environment
from harness.devices.environment import Machine
from harness.drill.drill import DrillOptions, plan_drill_here
from harness.drill.plan import DrillPlan, runs_of
from harness.evidence.base import Obstacle
from harness.evidence.plan_records import Run, Unit
from harness.execution.lanes import lanes
from harness.execution.sharing import Hosted, hosted
from harness.forecast.estimates import Estimates
from harness.forecast.records import Forecast, PlannedRun, PlannedUnit
from harness.lint import refuse_lint_errors
from harness.planning.gpu_needs import needs_gpu


def forecast_verify(paths: Sequence[Path], options: session.VerifyOptions) -> Forecast:
    """Forecast `session.verify` with the same arguments. Raises the ContractError or UsageError that it begins with.

    A baseline's commit is checked out, and removed again: its systems must say what they are.
    """
    session.refuse_fault_of_gate(options)
    contracts = load_contracts(paths)
    options = session.of_tags(contracts, options)
    read = FilesRead.of(paths, options.waivers, contracts)
    refuse_lint_errors(contracts, find_waivers(paths, options.waivers), paths, options.wall_limit_s)
    with session.baselines(contracts, options) as checkout:
        planned = session.plan_something(contracts, options, checkout)
    read.require_unchanged()
    units = [_unit(unit) for unit in planned.units]
    return _forecast(units, planned.runs, options.reports)


def forecast_drill(paths: Sequence[Path], options: DrillOptions) -> Forecast:
    """Forecast `drill` with the same arguments. Raises the ContractError or UsageError that it begins with."""
    _, _, planned, _ = plan_drill_here(paths, options, refuse_lint_errors)
    return _forecast(_drilled(planned), runs_of(planned), options.reports)


def _unit(unit: Unit) -> PlannedUnit:
    return PlannedUnit(
        contract=unit.contract, claim=unit.claim, workload=unit.workload, runs=unit.runs, obstacle=unit.obstacle
    )


def _drilled(planned: DrillPlan) -> list[PlannedUnit]:
    """Return the controls, then every fault with the runs whose evidence it rests on, then what cannot be planted."""
    units = [_unit(unit) for unit in planned.controls.units]
    for case in planned.cases:
        faulted = [planned.faulted[run] for run in case.unit.runs]
        runs = [one.executed.id for one in faulted if one.executed is not None]
        runs += [one.donor for one in faulted if one.donor is not None]
        units.append(_unit(case.unit).model_copy(update={"fault": case.fault, "runs": runs}))
    units += [
        PlannedUnit(
            contract=one.contract,
            claim=one.claim,
            workload="",
            fault=one.fault,
            obstacle=Obstacle(reason=one.reason, message=one.message),
        )
        for one in planned.not_run
    ]
    return units


def _forecast(units: Sequence[PlannedUnit], runs: Sequence[Run], reports: Path) -> Forecast:
    """Return the forecast. Each unit names the runs that are executed for it: of runs that share one, that one."""
    machine = environment.machine()
    hosts = hosted(runs)
    executed = {run.id: host.run.id for host in hosts for run in host.runs}
    decided = [
        unit.model_copy(update={"runs": list(dict.fromkeys(executed[run] for run in unit.runs))}) for unit in units
    ]
    estimates, together = Estimates(machine, reports).of([host.run for host in hosts])
    planned = [
        _run(host, machine, decided).model_copy(update={"estimate": estimates.get(host.run.id)}) for host in hosts
    ]
    known = [run.estimate.seconds for run in planned if run.estimate is not None]
    return Forecast(
        units=decided,
        runs=planned,
        seconds=round(sum(known), 1),
        unknown=len(planned) - len(known),
        together=together,
    )


def _run(host: Hosted, machine: Machine, units: Iterable[PlannedUnit]) -> PlannedRun:
    on_gpu = bool(machine.gpus) and needs_gpu(host.run)
    name = machine.gpus[0].name if on_gpu else environment.cpu_model()
    return PlannedRun(
        id=host.run.id,
        contract=host.run.contract,
        workload=host.run.workload_name,
        probe=host.run.probe,
        device="gpu" if on_gpu else "processor",
        device_name=name,
        processes=len(lanes(host.run)),
        stands_for=[guest.run.id for guest in host.guests],
        serves=[unit.named() for unit in units if host.run.id in unit.runs],
    )
