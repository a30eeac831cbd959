"""Measure how much trainings learn and how often their clip is active, to check the guards in contracts/.

    PYTHONPATH=. python tools/statistics/measure_guard_room.py --device cpu|cuda --out FILE.json

The trainings ("cases") are in `reports/statistics/guard-room/cases.json`, which `guard_room.py cases` writes from the
contracts. The script writes FILE.json after every training, so you can stop the script at any time. All cases are
trained with one seed before the next seed is used. So a stopped measurement has the first seeds of all cases. If the
file already has a measurement for this machine and training text, the measurement is not repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.judging.guards import shared_change
from reference_impl.accumulation import Accumulation
from reference_impl.attention import StepShape
from reference_impl.config import TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.data import TextBatches, read_text, tokenize
from reference_impl.trainer import Trainer

CASES = Path(__file__).parents[2] / "reports" / "statistics" / "guard-room" / "cases.json"
# Factor by which a planted fault multiplies the learning rate: every parameter changes, but almost nothing is learned.
LOST_LEARNING = 0.01
SEEDS, LARGE_SEEDS, FAULTY_SEEDS = 10, 3, 3  # numbers of seeds: for a case, for a large case, for a case with the fault
# Largest number of steps of a short training. Only short trainings are also checked for how clearly their loss follows
# the control's loss, because this is less clear with fewer steps.
SHORT = 20


@dataclass(frozen=True)
class Case:
    """One training with which guards are compared."""

    key: str
    config: TrainConfig  # configuration for one process; with ranks, each micro-batch has the rows of one rank
    lengths: tuple[int, ...]  # sequence lengths, which take turns
    ranks: int
    last: tuple[int, ...]  # numbers of last steps over which an effect is averaged
    is_trained: bool  # False: no training is needed, because the guards of this case are only about batches

    @property
    def is_large(self) -> bool:
        return self.config.model != "tiny"

    @property
    def lost_learning(self) -> float:
        """Return the fault's factor on the learning rate: all updates add up to at most one normal update."""
        return min(LOST_LEARNING, 1 / self.config.steps)

    def batches(self, seed: int) -> TextBatches:
        """Return the batches of one seed. Bytes are tokens in both models."""
        return TextBatches(tokenize(read_text(None), None), 256, seed)

    def length(self, index: int) -> int:
        """Return the sequence length of step `index`."""
        return self.lengths[index % len(self.lengths)]

    def distinct_batches(self, batches: TextBatches) -> int:
        """Return the number of different batches in the training."""
        size = self.config.batch_size
        read = (batches.batch(index, size, self.length(index)) for index in range(self.config.steps))
        return len(
            {hashlib.sha256(tokens.numpy().tobytes() + targets.numpy().tobytes()).digest() for tokens, targets in read}
        )


def read_cases(path: Path, device: str) -> list[Case]:
    """Return the cases of one device, in the order of the file."""
    return [
        Case(
            key,
            TrainConfig(**each["config"]),
            tuple(each["lengths"]),
            each["ranks"],
            tuple(each["last"]),
            each["is_trained"],
        )
        for key, each in json.loads(path.read_text(encoding="utf-8")).items()
        if each["config"]["device"] == device
    ]


class RankLosses(Accumulation):
    """An accumulation that processes the rows of one rank after the other, and stores the loss of each rank. Its
    results are equal in every bit to the results of ranks that train together."""

    def __init__(self, trainer: Trainer, ranks: int) -> None:
        super().__init__(trainer.model, ranks)
        # Shape [ranks]. The tensor is never replaced, so that a graph can write to its address.
        self.losses = torch.zeros(ranks, device=trainer.device)

    def micro_batch(self, tokens: Tensor, targets: Tensor, shape: StepShape, number: int) -> Tensor:
        loss = super().micro_batch(tokens, targets, shape, number)
        self.losses[number].copy_(loss * self.parts)
        return loss


class Training:
    """One trainer of a case with one seed. Every step returns a loss for each rank, float64 [ranks]."""

    def __init__(self, case: Case, seed: int, rate: float = 1.0) -> None:
        config = replace(case.config, seed=seed, learning_rate=case.config.learning_rate * rate)
        self._case = case
        self.trainer = Trainer(config)
        self._of_ranks = RankLosses(self.trainer, case.ranks) if case.ranks > 1 else None
        if self._of_ranks is not None:
            self.trainer.accumulation = self._of_ranks
        # On a GPU, replay captured steps (faster, same bits). The synchronizing clip cannot be captured.
        replayed = self.trainer.device.type == "cuda" and config.clip_mode == "fused"
        self.capturing = CapturingTrainer(self.trainer, "step" if replayed else "none")

    def untrained(self, index: int) -> Tensor:
        """Return the losses of batch `index` with the current parameters, without training on the batch."""
        self.trainer.set_shape(self._case.length(index))
        self.trainer.prepare(index)
        return self._losses(self.trainer.gradients_body())

    def step(self, index: int) -> Tensor:
        """Train on batch `index`, and return the losses before the update."""
        self.trainer.set_shape(self._case.length(index))
        return self._losses(self.capturing.step(index))

    def clip_acted(self) -> Tensor:
        """Return a 0-d bool on the device. It is True if the clip made a gradient smaller in the last step."""
        return (self.trainer.clip.norms > self.trainer.config.max_norm).any()

    def _losses(self, loss: Tensor) -> Tensor:
        each = loss.reshape(1) if self._of_ranks is None else self._of_ranks.losses
        return each.to(torch.float64, copy=True)

    def close(self) -> None:
        self.capturing.close()


@dataclass(frozen=True)
class Trained:
    """The values of one training that are compared with guards. With several ranks, the worst rank's values."""

    effect: dict[str, float]  # number of last steps -> effect, averaged over these steps
    clip_active_steps: int
    # how clearly the loss follows the control's loss, in standard errors; None if the training is not short
    standard_errors: float | None


def trained(case: Case, seed: int, rate: float = 1.0) -> Trained:
    with closing(Training(case, seed, rate)) as training:
        return measured(training, case)


def measured(training: Training, case: Case) -> Trained:
    """Train, and compare the losses with those of untrained parameters on the same batches, as the judge does.
    `harness.judging.guards` defines the effect and the standard errors."""
    steps = case.config.steps
    is_short = steps <= SHORT and bool(case.last)
    compared = steps if is_short else max(case.last, default=0)
    control = [training.untrained(index) for index in range(steps - compared, steps)]
    losses, acted = [], []
    for index in range(steps):
        losses.append(training.step(index))
        acted.append(training.clip_acted())
    if training.capturing.failure is not None:
        raise RuntimeError(f"the step of {case.key} was not captured: {training.capturing.failure}")
    effect: dict[str, float] = {}
    standard_errors: float | None = None
    if compared:
        # Both have the shape [compared, ranks].
        theirs, ours = torch.stack(control).cpu(), torch.stack(losses[steps - compared :]).cpu()
        effect = {str(last): (theirs - ours)[-last:].mean(dim=0).min().item() for last in case.last}
        if is_short:
            shares = (shared_change(ours[:, rank].numpy(), theirs[:, rank].numpy()) for rank in range(case.ranks))
            standard_errors = min(share / error for share, error in shares)
    return Trained(effect, int(torch.stack(acted).sum().item()), standard_errors)


def row(case: Case, seed: int, *, with_fault: bool) -> dict[str, Any]:
    """Return the measurement of one case with one seed. with_fault: also train with the fault `lost_learning`."""
    batches = case.batches(seed)
    found: dict[str, Any] = {
        "case": case.key,
        "seed": seed,
        "text_digest": batches.digest,
        "distinct_batches": case.distinct_batches(batches),
    }
    if case.is_trained:
        found |= asdict(trained(case, seed))
    if case.last and with_fault:
        found["lost_learning"] = trained(case, seed, case.lost_learning).effect
        found["lost_learning_share"] = case.lost_learning
    return found


def missing(cases: list[Case], rows: list[dict[str, Any]]) -> Iterator[tuple[Case, int]]:
    """Yield each case and seed for which `rows` has no measurement yet, one seed after the other."""
    known = {(row["case"], row["seed"]) for row in rows}
    for seed in range(max(SEEDS, LARGE_SEEDS)):
        for case in cases:
            if seed < (LARGE_SEEDS if case.is_large else SEEDS) and (case.key, seed) not in known:
                yield case, seed


def kept_rows(path: Path, cases: list[Case], machine: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows of an earlier file that are for these cases, this machine and this training text."""
    if not path.is_file():
        return []
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["machine"] != machine:
        raise SystemExit(
            f"{path} was measured on {record['machine']}, but this machine is {machine}; name another file"
        )
    by_key, text = {case.key: case for case in cases}, cases[0].batches(0).digest
    return [row for row in record["rows"] if row["text_digest"] == text and _is_of(by_key.get(row["case"]), row)]


def _is_of(case: Case | None, row: dict[str, Any]) -> bool:
    """Return True if the measurement `row` has every value that `case` requires. Return False if `case` is None."""
    if case is None or not {str(last) for last in case.last} <= row.get("effect", {}).keys():
        return False
    return "lost_learning" not in row or row.get("lost_learning_share", LOST_LEARNING) == case.lost_learning


def this_machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return {"device": name, "python": platform.python_version(), "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cases, machine = read_cases(CASES, arguments.device), this_machine(arguments.device)
    rows = kept_rows(arguments.out, cases, machine)
    for case, seed in missing(cases, rows):
        began = time.monotonic()
        # Plant the fault only in the small model, because one training of the model with 28 layers takes minutes.
        rows.append(row(case, seed, with_fault=not case.is_large and seed < FAULTY_SEEDS))
        print(f"{case.key} seed {seed}: {time.monotonic() - began:.1f} s, {rows[-1]}", file=sys.stderr, flush=True)
        record = {"machine": machine, "rows": rows}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
