"""REF-STEP-001 over many seeds and texts, and against faults: the figures of docs/reference-step.md.

    python scripts/reference_step.py [--seeds 20] [--jobs 2] [--only sweep|long|faults]

Each run judges the contracts' own claim with another seed, text or fault. The exit code is 1 unless every run of the
sweep passes and every fault exceeds its bound at least threefold.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference-step.md"
LONG = ROOT / "contracts-long" / "reference-step-long-v1.yaml"
SHORT = ROOT / "contracts" / "traced-step-v1.yaml"
TEXTS = {"Python's topics": None, "contracts": ROOT / "contracts", "license": ROOT / "LICENSE"}
PLANTED = (
    *("labels_not_shifted", "reset_momentum", "zeroed_gradient", "wrong_nf4_value", "constant_learning_rate"),
    "wrong_rotary_base",
)
AT_LEAST = 3.0
QUANTITIES = ("loss", "norms", "gradients", "exp_avg", "exp_avg_sq", "parameters")


@dataclass(frozen=True)
class Job:
    """One run: the claim of a contract, with a seed, a text, and a fault or none."""

    contract: Path
    seed: int = 0
    text: str = "Python's topics"
    fault: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What was judged; `times` are errors over their bounds, by quantity."""

    job: Job
    summary: str
    status: str
    reason: str
    message: str
    times: dict[str, float]
    first: tuple[str, int] | None  # the first quantity beyond its bound, and its step


def judged(job: Job) -> Outcome:
    """Execute and judge in this process. Heavy imports are here: the parent needs none."""
    import outsiders  # noqa: F401 - registers its faults
    import torch

    from harness.contract.load import load_contract
    from harness.evidence import layout
    from harness.evidence.plan_records import PlannedArm, Run
    from harness.evidence.read_run import read_run
    from harness.execution.probes import step_match
    from harness.execution.recorder import Recorder
    from harness.judging.registry import judge_unit
    from harness.numbers import dump_json
    from reference_impl.faults import FAULTS

    torch.set_num_threads(1)
    contract = load_contract(job.contract).contract
    claim = next(claim for claim in contract.claims if claim.kind == "step_match")
    roles, (name,), text = claim.arms(), claim.judged_on, TEXTS[job.text]
    workload = contract.workloads[name].model_copy(update={"seed": job.seed})
    contract = contract.model_copy(update={"workloads": {name: workload}})
    arms = {arm: contract.arms[arm] for arm in roles.values()}
    run = Run(
        id="run",
        contract=contract.id,
        probe="step_match",
        workload_name=name,
        workload=workload,
        arms={arm: PlannedArm(arm=each, system=each.system or contract.system) for arm, each in arms.items()},
        settings=dict(roles),
        fault=job.fault,
        fault_arms=[roles["candidate"]] if job.fault else [],
        data=None if text is None else str(text),
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / layout.RUN).write_text(dump_json(run.model_dump()))
        with Recorder(Path(folder)) as recorder:
            step_match.execute(run, recorder)
            recorder.complete()
        verdict = judge_unit(contract, claim, name, [read_run(Path(folder))[1]])
    figures = {key: figure.value for key, figure in verdict.figures.items()}
    first = figures.get("first_exceeding_quantity")
    return Outcome(
        job,
        FAULTS[job.fault].description.summary.removeprefix("in both arms ") if job.fault else "",
        verdict.status.value,
        verdict.reason,
        verdict.message,
        {quantity: float(str(figures.get(f"{quantity}_error_over_bound", "nan"))) for quantity in QUANTITIES},
        None if first is None else (str(first), int(str(figures["first_exceeding_step"]))),
    )


def outcomes(jobs: Sequence[Job], processes: int, *, alone: bool) -> list[Outcome]:
    """In their order. `alone`: each in a process of its own, since it may change what is left there."""
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1 if alone else None) as pool:
        found = []
        for outcome in pool.map(judged, jobs):
            worst = max(outcome.times.values())
            print(
                f"{outcome.job.fault or outcome.job.text}, seed {outcome.job.seed}: {outcome.status} {worst:.3g}",
                flush=True,
            )
            found.append(outcome)
        return found


def sweep_table(found: Sequence[Outcome]) -> list[str]:
    """A line for each text: how many passed, and the largest error over its bound by quantity."""
    lines = ["| text | seeds | PASS | " + " | ".join(QUANTITIES) + " |", "| --- " * (3 + len(QUANTITIES)) + "|"]
    for text in TEXTS:
        own = [each for each in found if each.job.text == text]
        passed = sum(each.status == "PASS" for each in own)
        worst = [f"{max(each.times[quantity] for each in own):.2f}" for quantity in QUANTITIES]
        lines.append(f"| {text} | {len(own)} | {passed} | {' | '.join(worst)} |")
    return lines


def fault_table(found: Sequence[Outcome]) -> list[str]:
    """A line for each fault: verdict, where it shows first, and by how much its worst error exceeds the bound."""
    lines = [
        "| fault | what is planted | verdict | shows first in | times its bound |",
        "| --- | --- | --- | --- | --- |",
    ]
    for each in found:
        first = f"{each.first[0]}, step {each.first[1]}" if each.first else "–"
        verdict = f"{each.status} {each.reason}"
        lines.append(f"| `{each.job.fault}` | {each.summary} | {verdict} | {first} | {max(each.times.values()):.3g} |")
    return lines


def publish(part: str, lines: Sequence[str]) -> None:
    """Put a table between its marks on the page."""
    begin, end = f"<!-- table: scripts/reference_step.py {part} -->", "<!-- end of table -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text("\n".join([before + begin, "", *lines, "", end + after]), encoding="utf-8")


def sweep(part: str, contract: Path, seeds: int, processes: int) -> str:
    """Judge every seed with every text, and publish; raises SystemExit for one that does not pass."""
    found = outcomes([Job(contract, seed, text) for text in TEXTS for seed in range(seeds)], processes, alone=False)
    publish(part, sweep_table(found))
    failed = [f"{each.job.text}, seed {each.job.seed}: {each.message}" for each in found if each.status != "PASS"]
    if failed:
        raise SystemExit("\n".join(failed))
    worst = max(max(each.times.values()) for each in found)
    return f"{part}: {len(found)} of {len(found)} PASS, the worst at {worst:.2f} of its bound"


def faults(processes: int) -> str:
    """Judge every fault, and publish; raises SystemExit for one that is not killed threefold."""
    import outsiders

    planted = outcomes([Job(SHORT, fault=name) for name in PLANTED], processes, alone=True)
    others = outcomes([Job(SHORT, fault=name) for name in outsiders.OUTSIDERS], processes, alone=True)
    publish("planted", fault_table(planted))
    publish("others", fault_table(others))
    survived = [
        str(each.job.fault)
        for each in (*planted, *others)
        if each.status != "FAIL" or (each.reason == "exceeds_tolerance" and max(each.times.values()) < AT_LEAST)
    ]
    if survived:
        raise SystemExit(f"not killed threefold: {', '.join(survived)}")
    least = min(max(each.times.values()) for each in (*planted, *others) if each.reason == "exceeds_tolerance")
    return f"{len(planted) + len(others)} faults killed, the smallest at {least:.1f} times its bound"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=("sweep", "long", "faults"))
    given = parser.parse_args()
    parts: dict[str, Callable[[], str]] = {
        "sweep": lambda: sweep("sweep", SHORT, given.seeds, given.jobs),
        "long": lambda: sweep("long", LONG, given.seeds, given.jobs),
        "faults": lambda: faults(given.jobs),
    }
    print("; ".join(run() for name, run in parts.items() if given.only in (None, name)))


if __name__ == "__main__":
    main()
