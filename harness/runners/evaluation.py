"""The evaluation probe: an arm trains without evaluations, and once more with one after every so many steps.

Executions: 0 without, 1 with them. Digests of the state around each evaluation show what it changed where no loss does.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from torch import Tensor

from harness.evidence.arm_records import Evaluated
from harness.evidence.plan_records import Run
from harness.runners.opening import opened
from harness.runners.recorder import Recorder
from harness.runners.reductions import digests
from harness.runners.state_watch import LOOSE, Ends, watched_state
from harness.runners.stretch import Stretch
from harness.system.adapter_checks import AdapterError, describe_value
from harness.system.protocol import Evaluates, NotAvailable, TrainingRun
from harness.system.users_code import return_place

WITHOUT, WITH = 0, 1
WHOLE = "value"  # the name of a number that came alone
NAMED = 20  # changed tensors, at most


def execute(run: Run, recorder: Recorder) -> None:
    """Train the arm twice."""
    arm, every = str(run.settings["candidate"]), int(str(run.settings["every"]))
    ends = Ends()
    for replica in (WITHOUT, WITH):
        recorder.phase(f"{arm}.{replica}: open")
        with opened(run, arm) as training:
            between = _Evaluations(training, arm, every, recorder)
            stretch = Stretch(run, arm, replica, training, recorder)
            stretch.steps(range(run.workload.steps), *([between.after] if replica == WITH else []))
            stretch.end(ends)
        del training, between, stretch


class _Evaluations:
    def __init__(self, training: TrainingRun, arm: str, every: int, recorder: Recorder) -> None:
        if not isinstance(training, Evaluates):
            raise NotAvailable(f"the system of arm {arm} lacks the capability `evaluate`")
        self._training, self._evaluates = training, training
        self._arm, self._every, self._recorder = arm, every, recorder

    def after(self, steps: int) -> None:
        """Evaluate, if it is time; `steps` were made."""
        if steps % self._every:
            return
        before = _state_digests(self._training)
        values = values_of(self._evaluates.evaluate(), self._evaluates)
        after = _state_digests(self._training)
        changed = [
            f"{category} {name}"
            for category, names in before.items()
            for name, digest in names.items()
            if after.get(category, {}).get(name) != digest
        ]
        self._recorder.write(
            Evaluated(
                arm=self._arm,
                replica=WITH,
                steps=steps,
                values=values,
                before={category: _of_category(names, names) for category, names in before.items()},
                # what came with the evaluation, a device's generator say, was not there to be changed
                after={category: _of_category(after.get(category, {}), names) for category, names in before.items()},
                changed=changed[:NAMED],
            )
        )


def _state_digests(training: TrainingRun) -> dict[str, dict[str, str]]:
    """By category and name. Loose tensors, of which nobody knows whether a step reads them, are left to the end."""
    state = watched_state(training)
    return {category: digests(tensors) for category, tensors in state.items() if category != LOOSE and tensors}


def _of_category(found: Mapping[str, str], names: Mapping[str, str]) -> str:
    """One digest of those of the named tensors."""
    return sha256(" ".join(found.get(name, "gone") for name in sorted(names)).encode()).hexdigest()[:32]


def values_of(returned: object, training: Evaluates) -> dict[str, float]:
    """The numbers that an evaluation returned; none where it returned nothing. Raises `AdapterError` for anything else.

    Reading them waits for the device.
    """
    if returned is None:
        return {}
    entries = returned.items() if isinstance(returned, Mapping) else [(WHOLE, returned)]
    values = {}
    for name, value in entries:
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            found = describe_value(value) if name == WHOLE else f"{describe_value(value)} under {name!r:.60}"
            raise AdapterError(
                "evaluate() returns a number, a tensor of one number, or several of them by name",
                where=return_place(training.evaluate),
                got=found,
                remedy="return the mean loss of the evaluated batches, say",
            )
        values[str(name)] = float(number)
    return values
