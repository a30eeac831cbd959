"""Count how many equal pairs of noisy trainers the noise rule accuses, and which planted faults it finds.

A pair is 5 runs of the baseline, then 5 of the same arm as a candidate, of one process, as a claim with
`equality: noise` has them executed. Sketches and judgement are the harness's own. Without a GPU the noise is drawn.

    python scripts/noise_on_gpu.py [--pairs 40] [--steps 12] [--output noise_on_gpu.json] [--trainers Convolutional …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from noisy_trainers import Convolutional, Loud, Noisier, Noisy, Scattering

from harness.contract.schema import Arm, Workload
from harness.evidence.arm_records import Gradients
from harness.evidence.run_evidence import ArmEvidence, Series
from harness.execution.arm import arm_end, arm_start
from harness.execution.watchers.capture_attempts import CaptureAttempts
from harness.execution.watchers.reductions import reduce_gradients
from harness.execution.watchers.state_watch import Ends, StateWatch
from harness.judging.end_state import require_equal_ends
from harness.judging.excused_ends import ExcusedEnds
from harness.judging.own_noise import require_within_noise
from harness.judging.sheet import Settled, Sheet
from harness.kinds.trajectory.model import NOISE_STEPS, RUNS, TrajectoryMatch
from harness.numbers import dump_json
from harness.system.wrappers import wrap

TRAINERS = {each.__name__: each for each in (Convolutional, Scattering, Noisy, Noisier, Loud)}
WRAPPED = ("dropped_last_update", "half_moved", "doubled_step", "wiped_moments")  # the harness's own faults


def executed(system: Noisy, arm: str, replica: int, steps: int, fault: str | None = None) -> ArmEvidence:
    """Train once, and return what the noise rule reads of it."""
    workload = Workload(model="any", batch_size=4, seq_len=4, steps=steps)
    own = fault if fault in system.faults else None
    training: Any = system.open(workload, Arm(capture="none"), fault=own)
    if fault is not None and own is None:
        training = wrap(training, fault, steps=steps)
    watch = StateWatch(training, sketched=True)
    start = arm_start(training, arm, replica, watch)
    read = {step % steps for step in NOISE_STEPS}
    losses, gradients = [], []
    for index in range(steps):
        losses.append(training.step(index))
        training.inputs()  # faults at the end act when the inputs of the last step are asked for
        if index in read:
            tensors = reduce_gradients(training.gradients(), None, sketched=True)
            fields = {"arm": arm, "replica": replica, "step": index, "baseline": None, "groups": []}
            gradients.append(Gradients(tensors=tensors, **fields))
        if index == 0:
            watch.after_first_step()
    with CaptureAttempts() as attempts:  # whose count every arm's end holds
        attempts.training = training
        end = arm_end(training, arm, replica, steps, watch, Ends())
    series = np.array([float(loss) for loss in losses])
    counts = np.zeros(steps, np.int64)
    return ArmEvidence(start, end, Series(series, [str(index) for index in range(steps)], counts, counts), gradients)


def runs_of(system: Noisy, arm: str, steps: int, fault: str | None = None) -> list[ArmEvidence]:
    """As many executions as a claim asks for."""
    return [executed(system, arm, replica, steps, fault) for replica in range(RUNS)]


def judged(candidates: Sequence[ArmEvidence], baselines: Sequence[ArmEvidence], steps: int) -> dict[str, Any]:
    """Return whether the rule accuses the candidate, with the figures that say so."""
    part = TrajectoryMatch.model_validate(
        {"kind": "trajectory_match", "candidate": "candidate", "baseline": "baseline", "equality": "noise"}
        | {"guards": {"steps": steps}}
    )
    sheet, message = Sheet(), ""
    ours, theirs = (
        {f"{each.start.arm} {index}": each for index, each in enumerate(runs)} for runs in (candidates, baselines)
    )

    def ends(noisy: Collection[str], executions: Mapping[str, ArmEvidence]) -> None:
        require_equal_ends(executions, sheet, noisy=noisy, excused=ExcusedEnds({}, (), ()))

    try:
        require_within_noise(part, ours, theirs, sheet, ends)
    except Settled as settled:
        message = str(settled)
    figures: dict[str, Any] = {name: figure.value for name, figure in sheet.figures.items()}
    return figures | {"accused": bool(message), "message": message}


def measured(system: Noisy, pairs: int, steps: int) -> dict[str, Any]:
    """Judge equal pairs, then one candidate with each fault against the last pair's baseline."""
    began, equal, baselines = time.monotonic(), [], []
    for pair in range(pairs):
        baselines = runs_of(system, "baseline", steps)
        equal.append(judged(runs_of(system, "candidate", steps), baselines, steps))
        print(system.name, "pair", pair, equal[-1]["accused"], equal[-1]["beyond_noise"], flush=True)
    faults = {}
    for fault in (*system.faults, *WRAPPED):
        faults[fault] = judged(runs_of(system, "candidate", steps, fault), baselines, steps)
        print(system.name, fault, faults[fault]["accused"], faults[fault].get("beyond_noise"), flush=True)
    losses = np.array([each.series.loss for each in baselines])
    return {
        "pairs": pairs,
        "accused": sum(each["accused"] is True for each in equal),
        "faults": len(faults),
        "found": sum(each["accused"] is True for each in faults.values()),
        "hidden": sorted(name for name, each in faults.items() if not each["accused"]),
        "distinct_baselines": len({each.end.trainable_digest for each in baselines if each.end}),
        "loss_spread_by_step": losses.std(axis=0).tolist(),
        "loss_by_step": losses.mean(axis=0).tolist(),
        "seconds": time.monotonic() - began,
        "equal_pairs": equal,
        "by_fault": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path("noise_on_gpu.json"))
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=["Convolutional", "Scattering"])
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    chosen = {name: TRAINERS[name]() for name in arguments.trainers}
    found: dict[str, dict[str, Any]] = {}
    for name, system in chosen.items():
        found[name] = measured(system, arguments.pairs, arguments.steps)
        whole = {"device": device, "torch": torch.__version__, "steps": arguments.steps, "trainers": found}
        arguments.output.write_text(dump_json(whole) + "\n", encoding="utf-8")
    for name, each in found.items():
        accused = f"{each['accused']} of {each['pairs']} equal pairs accused"
        hidden = f"hidden by the noise: {', '.join(each['hidden']) or 'none'}"
        print(f"{name}: {accused}, {each['found']} of {each['faults']} faults found, {hidden}")


if __name__ == "__main__":
    main()
