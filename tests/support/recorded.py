"""Write the records of one arm like a worker, and read them back."""

from __future__ import annotations

from pathlib import Path

from run_builders import stand_in_run

from harness.evidence.arm_records import ArmEnd, ArmStart
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import RunEvidence

RUN = stand_in_run("one_arm")


def start(arm: str = "plain", replica: int = 0) -> ArmStart:
    return ArmStart(
        arm=arm, replica=replica, trainable_digest="a", frozen_digest="f", trainable_tensors=1, facts={"layers": 2}
    )


def end(arm: str = "plain", replica: int = 0) -> ArmEnd:
    return ArmEnd(arm=arm, replica=replica, trainable_digest="b", frozen_digest="f", skipped_steps=0, steps_called=1)


def read(directory: Path) -> RunEvidence:
    return read_run(directory)[1]
