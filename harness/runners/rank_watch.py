"""What one rank did in every step: its parameters and the rows that it read, as digests, and its collectives.

Digests stay on the device until the series is over: a step costs their operations, and no host sync.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from harness.evidence.arm_records import RankSteps
from harness.evidence.plan_records import Run
from harness.runners.micro_batches import split
from harness.runners.rank_seat import collectives_begun
from harness.runners.recorder import Recorder
from harness.runners.reductions import as_hex, combine_each, combine_on_device
from harness.runners.state_watch import named_parameters
from harness.system.protocol import HasInputs, TrainingRun


class RankWatch:
    """One execution of an arm, of whatever number of ranks; begins before its first step."""

    def __init__(self, training: TrainingRun, run: Run, arm: str, replica: int) -> None:
        self._training, self._arm, self._replica = training, arm, replica
        self._rows_of_rank = run.workload.batch_size // run.arms[arm].arm.ranks
        self._parameters = [self._digest()]
        self._rows: list[Tensor] = []  # int64 [rows] each
        self._begun = [collectives_begun()]

    def add(self, index: int, recorder: Recorder) -> None:  # noqa: ARG002 - as other watches are told
        """Note the step that was made last."""
        self._begun.append(collectives_begun())
        self._parameters.append(self._digest())
        inputs = self._training.inputs() if isinstance(self._training, HasInputs) else {}
        rows = split(inputs, self._rows_of_rank)
        if rows:
            self._rows.append(combine_each(rows))

    def write(self, recorder: Recorder) -> None:
        """Write all that was noted; waits for the device."""
        recorder.write(self._record())

    def _record(self) -> RankSteps:
        collectives = [after - before for before, after in zip(self._begun, self._begun[1:], strict=False)]
        last = next((number for number in reversed(collectives) if number), 0)
        return RankSteps(
            arm=self._arm,
            replica=self._replica,
            parameters=[as_hex(value) for value in torch.stack(self._parameters).tolist()],
            rows=[[as_hex(value) for value in rows.tolist()] for rows in self._rows],
            collectives=collectives,
            names=_names_of_last(last),
        )

    def _digest(self) -> Tensor:
        parameters = named_parameters(self._training)
        return combine_on_device(parameters) if parameters else torch.zeros((), dtype=torch.int64)


def _names_of_last(number: int) -> dict[str, int]:
    """The last collectives by torch's flight recorder, each name with how often; nothing where it does not answer."""
    if not number:
        return {}
    try:
        entries = json.loads(_flight_recorder())["entries"]
        names = [str(entry["profiling_name"]) for entry in sorted(entries, key=lambda entry: int(entry["record_id"]))]
    except Exception:  # another release of torch's; the count is known without it
        return {}
    return dict(Counter(names[-number:]))


def _flight_recorder() -> Any:
    """What the recorder holds, as JSON; torch 2.11 knows that of NCCL by another name."""
    from torch._C import _distributed_c10d

    distributed: Any = _distributed_c10d
    dump = getattr(distributed, "_dump_fr_trace_json", None) or distributed._dump_nccl_trace_json
    return dump()
