"""Record each step of one rank: parameters, the rows of the batch that it read, random generators, and collectives.

Parameters, rows and states of generators are recorded as digests. Digests of tensors stay on the device until all steps
are made, so that they need no host sync in a step. Tensors that are sharded over ranks are gathered with the harness's
own collectives, which are not counted.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from harness.evidence.arm_records import RankSteps
from harness.execution.arm import ArmLife
from harness.execution.rank_seat import collectives_begun
from harness.execution.watchers.capture_watch import state_digests
from harness.execution.watchers.gradient_reader import split
from harness.execution.watchers.reductions import as_hex, combine_each, combine_on_device
from harness.execution.watchers.state_watch import named_parameters, watched_state
from harness.system.protocol import HasInputs, HasStateRoots, TrainingRun
from harness.system.ranks import rank
from harness.system.replay.generators import Accessors, global_generators
from harness.system.replay.reachable import reach
from harness.system.sharded_tensors import elements, is_replicated


class RankWatch:
    """Observes one rank in one execution of an arm. Create this object before the first step."""

    def __init__(self, life: ArmLife) -> None:
        self._life, self._training = life, life.training
        self._rows_of_rank = life.run.workload.batch_size // life.planned.arm.shares
        self._parameters = [self._digest()]
        self._rows: list[Tensor] = []  # for each step: digests of the batch's rows, int64 [rows]
        self._begun: list[tuple[int, int]] = []  # for each step: how many collectives had begun before it and after it
        self._before = 0
        self._generators = _of_this_rank(self._training)
        self._drawn = [state_digests(self._generators)]

    def before_step(self, _index: int) -> None:
        """Store the number of collectives before a step. Collectives that were begun before this call do not belong to
        the step."""
        self._before = collectives_begun()

    def add(self, _index: int) -> None:
        """Store the digests, and the number of collectives, after the step that was made last."""
        self._begun.append((self._before, collectives_begun()))
        self._parameters.append(self._digest())
        self._drawn.append(state_digests(self._generators))
        inputs = self._training.inputs() if isinstance(self._training, HasInputs) else {}
        rows = split(inputs, self._rows_of_rank)
        if rows:
            self._rows.append(combine_each(rows))

    def write(self) -> None:
        """Write the record about all steps. This call waits for the device."""
        self._life.recorder.write(self._record())

    def _record(self) -> RankSteps:
        last = next((each for each in reversed(self._begun) if each[0] != each[1]), (0, 0))
        return RankSteps(
            arm=self._life.arm,
            replica=self._life.replica,
            parameters=[as_hex(value) for value in torch.stack(self._parameters).tolist()],
            rows=[[as_hex(value) for value in rows.tolist()] for rows in self._rows],
            collectives=[after - before for before, after in self._begun],
            names=_names_between(*last),
            parts=sum(not is_replicated(tensor) for tensor in named_parameters(self._training).values()),
            held={category: elements(tensors) for category, tensors in self._trained().items()},
            generators=self._states(),
        )

    def _states(self) -> dict[str, list[str]]:
        """Return, for each generator by name, digests of its states: at the start and after each step. Return only one
        digest for a generator whose state never changed, and none for a generator that a step created or replaced."""
        by_name = {name: [states[name] for states in self._drawn] for name in self._drawn[0]}
        seen = {name: states if len({*states}) > 1 else states[:1] for name, states in by_name.items()}
        known, now = (
            {name: getattr(get, "__self__", None) for name, (get, _) in each.items()} for each in self._both()
        )
        return seen | {name: [] for name, owner in now.items() if name not in known or owner is not known[name]}

    def _both(self) -> tuple[dict[str, Accessors], dict[str, Accessors]]:
        return self._generators, _of_this_rank(self._training)

    def _trained(self) -> dict[str, list[Tensor]]:
        """Return the tensors that can be divided among ranks, by category: parameters and the optimizer's moments."""
        optimizer = watched_state(self._training).get("optimizer", {}).values()
        moments = [tensor for tensor in optimizer if tensor.dim() and tensor.is_floating_point()]
        return {"parameters": list(named_parameters(self._training).values()), "optimizer": moments}

    def _digest(self) -> Tensor:
        parameters = named_parameters(self._training)
        return combine_on_device(parameters) if parameters else torch.zeros((), dtype=torch.int64)


def _of_this_rank(training: TrainingRun) -> dict[str, Accessors]:
    """Return the random generators of the process and those that the step can reach. Names are equal on all ranks."""
    own = f"torch.cuda:{rank()}"
    of_process = {
        "torch.cuda" if name == own else name: each
        for name, each in global_generators().items()
        if name == own or not name.startswith("torch.cuda:")
    }
    roots = training.state_roots() if isinstance(training, HasStateRoots) else [training]
    return {**reach(*roots).generators, **of_process}


def _names_between(before: int, after: int) -> dict[str, int]:
    """Return, for each name of a collective, how many collectives with this name began while the number of collectives
    rose from `before` to `after`.

    Return an empty mapping if torch's flight recorder gives no names. The recorder also contains collectives of earlier
    process groups, so its entries are counted backward from the latest one.
    """
    if before == after:
        return {}
    now = collectives_begun()
    try:
        entries = json.loads(_flight_recorder())["entries"]
        names = [str(entry["profiling_name"]) for entry in sorted(entries, key=lambda entry: int(entry["record_id"]))]
    except Exception:
        # Another version of torch may write other entries. Then only the names are missing, and not the number of
        # collectives.
        return {}
    last = len(names) - (now - after)
    return dict(Counter(names[max(0, last - (after - before)) : max(0, last)]))


def _flight_recorder() -> Any:
    """Return the content of torch's flight recorder as JSON text. In torch 2.11 the recorder of NCCL has a separate
    function for this."""
    from torch._C import _distributed_c10d

    distributed: Any = _distributed_c10d
    dump = getattr(distributed, "_dump_fr_trace_json", None) or distributed._dump_nccl_trace_json
    return dump()
