"""A training system without torch, and the probe that plays its runs as a workload's `behaviour` says.

`execute` writes evidence within a worker. `play` does the same without a worker, for tests of later stages.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.commits.import_path import ImportPath
from harness.evidence.arm_records import ArmEnd, ArmStart, CaptureEvidence, State, StepWatch
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import Complete
from harness.execution.recorder import Recorder, StepRows
from harness.numbers import dump_json
from harness.system import described
from harness.system.protocol import Arm, Expectation, FaultDescription, SystemDescription, TrainingRun, Workload

STEPS = 5
LOSSES = [2.0, 1.75, 1.5, 1.25, 1.0]
DIFFERING = [2.0, 1.75, 1.5, 1.375, 1.0]  # first at step 3, by 0.125
CONTRACT = """\
schema: contract/v1
id: {id}
title: What the arms do is scripted
system: scripted_system:ScriptedSystem
workloads:
{workloads}
arms:
  fast: {{capture: step}}
  plain: {{capture: none}}
claims:
  - id: {claim}
    title: The losses agree in bits
    kind: trajectory_match
    candidate: fast
    baseline: plain
    equality: bitwise
    max_abs_difference: 0.1
    guards: {{steps: 5}}
    on: [{on}]
    why: The script decides.
    if_fails: The script says so.
    falsified_by: [nan_tail]
"""


def contract_text(*behaviours: str, identity: str = "scripted-v1", claim: str = "SCRIPT-001") -> str:
    """Return a contract of one claim, with a workload for each behaviour; `not_run` needs a module that is absent."""
    lines = []
    for name in behaviours:
        needs = "{modules: [a_module_that_nobody_has]}" if name == "not_run" else "{}"
        workload = f"model: m, batch_size: 2, seq_len: 4, steps: {STEPS}, needs: {needs}"
        lines.append(f"  {name}: {{{workload}, options: {{behaviour: {name}}}}}")
    return CONTRACT.format(id=identity, claim=claim, workloads="\n".join(lines), on=", ".join(behaviours))


class ScriptedSystem:
    """Describe the system; its runs are played by `execute` and never opened."""

    def describe(self) -> SystemDescription:
        return SystemDescription(
            name="scripted",
            summary="plays what a workload's `behaviour` says",
            models=(),
            arm_options={},
            workload_options={"behaviour": str},
            capabilities=frozenset({"inputs", "parameters", "capture"}),
            captures=frozenset({"none", "step"}),
            faults=dict[str, FaultDescription](),
        )

    def open(
        self,
        workload: Workload,
        arm: Arm,
        *,
        fault: str | None = None,
        data: str | None = None,
        model_directory: str | None = None,
    ) -> TrainingRun:
        raise NotImplementedError


class FaultySystem(ScriptedSystem):
    """Offer faults whose names are words of the harness; each makes the candidate's losses differ."""

    FAULTS = ("drill", "fault", "verify")

    def describe(self) -> SystemDescription:
        breaks = {"trajectory_match": Expectation("FAIL", "differs", {"first_differing_step": 3})}
        faults = {name: FaultDescription(name, "a loss differs", "candidate", breaks) for name in self.FAULTS}
        return replace(super().describe(), faults=faults)


def execute(run: Run, recorder: Recorder) -> None:
    """Act as the probe `paired`: misbehave as the workload says, or write the evidence of both arms."""
    behaviour = str(run.workload.options["behaviour"])
    recorder.phase(behaviour)
    misbehave = MISBEHAVIOURS.get(behaviour)
    if misbehave is not None:
        misbehave()
    _write(run, recorder, behaviour)


def play(run: Run, directory: Path, *_: object, **__: object) -> Death | None:
    """Replace `supervisor.execute`: write the same files without a process. `error`: a worker killed at once."""
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(dump_json(run.model_dump(), sort_keys=False))
    behaviour = str(run.workload.options["behaviour"])
    death = None
    with Recorder(directory) as recorder:
        if behaviour == "error":
            death = Death(cause="signal", detail="SIGKILL", phase="arm fast", stack="")
            (directory / "death.json").write_text(dump_json(death.model_dump()))
        else:
            _write(run, recorder, behaviour)
            recorder.write(Complete(seconds=0.5))
    (directory / "heartbeat").unlink()
    return death


_ask = described._ask


def describe_here(names: Sequence[str], limit_s: float, at: ImportPath | None) -> dict[str, described.Description]:
    """Replace `described._ask`: describe these systems in this process, and other systems as usual."""
    own = {name: globals()[name.partition(":")[2]]().describe() for name in names if name.startswith(f"{__name__}:")}
    others = [name for name in names if name not in own]
    return own | (_ask(others, limit_s, at) if others else {})


def _write(run: Run, recorder: Recorder, behaviour: str) -> None:
    digests = {"frozen_digest": "f0"}
    for arm, planned in run.arms.items():
        for replica in planned.indices:
            recorder.write(
                ArmStart(
                    arm=arm,
                    replica=replica,
                    trainable_digest="a",
                    trainable_tensors=2,
                    facts={},
                    state=_state("a"),
                    **digests,
                )
            )
            faulty = behaviour == "violated" or run.fault in FaultySystem.FAULTS
            losses = DIFFERING if faulty and arm == "fast" else LOSSES
            batches = [f"b{step}" for step in range(STEPS)]
            recorder.series(arm, replica).rows(StepRows(range(STEPS), losses, batches, [-1] * STEPS, [8] * STEPS))
            recorder.write(_capture(arm, replica, captured=arm == "fast" and behaviour != "undecided"))
            recorder.write(
                ArmEnd(
                    arm=arm,
                    replica=replica,
                    trainable_digest="z",
                    skipped_steps=0,
                    steps_called=STEPS,
                    state=_state("z"),
                    **digests,
                )
            )


def _state(parameter: str) -> State:
    return State(digests={"parameters": {"p": parameter, "q": parameter}, "generators": {"python": "g"}}, tensors=3)


def _capture(arm: str, replica: int, *, captured: bool) -> CaptureEvidence:
    return CaptureEvidence(
        arm=arm,
        replica=replica,
        mechanism="traced" if arm == "fast" else None,
        requested=arm == "fast",
        captured=captured,
        failure=None if captured or arm != "fast" else "the script does not capture",
        captures=int(captured),
        warmup_steps=0,
        replays=STEPS if captured else 0,
        uncaptured_steps=0 if captured else STEPS,
        nodes=[],
        recorded_operations=7,
        fake_pass_clean=True,
        moved_buffers=[],
        static_buffers=3,
        observed_steps=2 if captured else 0,
        every_step=StepWatch(steps=STEPS - 1, fewest_operations=7, most_operations=7, busiest_step=1),
        observed_graph_launches=None,
        observed_replayed_operations=14 if captured else None,
    )


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep() -> None:
    time.sleep(600)


def _wait() -> None:
    """Wait until the file `go` exists; then the run continues and holds."""
    while not Path("go").exists():
        time.sleep(0.05)


def _leave() -> None:
    os._exit(0)


def _print_100_mb() -> None:
    block = "x" * 999_999 + "\n"
    for _ in range(100):
        sys.stdout.write(block)


def _import_what_raises() -> None:
    import raises_on_import  # noqa: F401


MISBEHAVIOURS = {
    "killed": _kill_self,
    "sleeps": _sleep,
    "waits": _wait,
    "leaves": _leave,
    "prints": _print_100_mb,
    "raises": _import_what_raises,
}
