"""The first adapter and contract of a trainer, as texts: `harness init` writes them, `harness try` runs them."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

from harness.contract.portable_scalars import portable
from harness.contract.schema import SCHEMA_VERSION
from harness.first_contract.step_source import GIVEN, StepSource

STEPS = 40
GUESSED_EFFECT = 0.01
GUESS = "A first guess, before anything was run: `harness try --write-contract` derives it from a run."


@dataclass(frozen=True)
class Arms:
    """What this machine allows beside a captured and a plain arm."""

    compiled: bool  # torch.compile: there is a C++ compiler
    timed: bool  # there is a CUDA device


@dataclass(frozen=True)
class Effect:
    """How far training lowered the loss over the last steps, below that of the untrained control.

    demanded: the training effect that a claim asks for. bound: by how much a compiled step's losses may differ.
    """

    demanded: float = GUESSED_EFFECT
    bound: float = GUESSED_EFFECT
    why: str = GUESS


def measured_effect(lowered_by: float, loss: float, steps: int) -> Effect:
    """Demand and bound from a run that lowered the loss by so much, from `loss` in the mean (both of one series).

    Half of what was seen is demanded, and a hundredth of it is the bound. Less than 2 % of the loss shows nothing
    beyond the noise of batches: then these are of 2 % of the loss. Numbers that are not finite give the guess.
    """
    seen = max(lowered_by, abs(loss) / 50)
    if not (math.isfinite(seen) and math.isfinite(lowered_by) and seen > 0):
        return Effect()
    why = (
        f"In the run that wrote this, training lowered the loss by {lowered_by:.3g}, the mean of its last "
        f"{last_steps(steps)} steps: half of that is demanded, and a hundredth is how far a compiled step may be off."
    )
    if seen > lowered_by:
        why = (
            f"In the run that wrote this, training lowered the loss by {lowered_by:.3g} only, less than 2 % of "
            f"{abs(loss):.3g}, which shows nothing: 1 % of that is demanded. Take more steps, or a higher rate."
        )
    return Effect(_two_digits(seen / 2), _two_digits(seen / 100), why)


def _two_digits(number: float) -> float:
    return float(f"{number:.1e}")


def _number(value: float) -> str:
    """A float as every YAML reader takes it for one."""
    text = f"{value:g}"
    return portable(text, value) or text


def last_steps(steps: int) -> int:
    """Over how many last steps the training effect is the mean."""
    return max(1, steps // 4)


@dataclass(frozen=True)
class Draft:
    """An adapter and a contract for one step; `adapter_folder` is where the adapter will lie."""

    source: StepSource
    steps: int
    arms: Arms
    effect: Effect = Effect()

    @property
    def adapter_name(self) -> str:
        return f"{self._stem}_harness.py"

    @property
    def contract_name(self) -> str:
        return f"{self._id}.yaml"

    @property
    def _stem(self) -> str:
        return self.source.module.rpartition(".")[2][:60]

    @property
    def _id(self) -> str:
        return f"{self._stem.strip('_').replace('_', '-') or 'step'}-v1"

    def claim_id(self, claim: str) -> str:
        return f"{self._id.removesuffix('-v1').upper()}-{claim}"

    def adapter(self, folder: Path) -> str:
        """The adapter's text, for a file in `folder`."""
        source = self.source
        given = ", ".join(f"{name}={GIVEN[name]}" for name in source.arguments)
        return (
            f'"""How the contract harness trains with {_one_line(source.asked)}: yours to change."""\n\n'
            f"{_path_lines(source.folder, folder)}"
            "from harness.system.made_step import MadeStepSystem\n\n\n"
            "class System(MadeStepSystem):\n"
            f'    name = "{source.module}:{source.function}"\n\n'
            "    def build(self, workload, arm):\n"
            f"        from {source.module} import {source.function}\n\n"
            f"        return {source.function}({given})\n"
        )

    def contract(self) -> str:
        """The contract's text."""
        named = f"{self.source.module}:{self.source.function}"
        system = f"{self.adapter_name.removesuffix('.py')}:System"
        sizes = {name: self.source.defaults.get(name, 1) for name in ("batch_size", "seq_len")}
        unknown = [name for name in sizes if name not in self.source.arguments]
        comment = f"  # {' and '.join(unknown)}: {named} has its own\n" if unknown else ""
        arms = [
            ("captured", "{capture: step}"),
            ("plain", "{capture: none}"),
            ("untrained", "{capture: none, trains: false} # every update is undone"),
            ("waiting", "{capture: none, waits: true} # reads one value from the device, and does nothing else"),
        ]
        arms += [("compiled", "{capture: none, compile: true}")] if self.arms.compiled else []
        return (
            f"schema: {SCHEMA_VERSION}\n"
            f"id: {self._id}\n"
            f"title: A captured step of {named} trains like the plain one\n"
            f"system: {system}\n\n"
            f"workloads:\n{comment}"
            f"  small: {{model: {self.source.function}, batch_size: {sizes['batch_size']}, "
            f"seq_len: {sizes['seq_len']}, steps: {self.steps}}}\n\n"
            "arms:\n" + "".join(f"  {name}: {settings}\n" for name, settings in arms) + f"\nclaims:\n{self._claims()}"
        )

    def _claims(self) -> str:
        claims = [self._repeats(), self._captures(), self._same(), self._syncs()]
        if self.arms.compiled:
            claims.append(self._compiled())
        if self.arms.timed:
            claims.append(self._faster("FASTER", "captured", "SAME", "other_losses"))
        if self.arms.timed and self.arms.compiled:
            claims.append(self._faster("COMPILED-FASTER", "compiled", "COMPILED", "stopped_training"))
        return "\n".join(claims)

    def _claim(self, claim: str, title: str, kind: str, body: str, why: str, if_fails: str, faults: str) -> str:
        return (
            f"  - id: {self.claim_id(claim)}\n    title: {title}\n    kind: {kind}\n{body}    judged_on: [small]\n"
            f"    why: >-\n{_wrapped(why)}\n    if_fails: >-\n{_wrapped(if_fails)}\n    falsified_by: [{faults}]\n"
        )

    def _equality(self, equality: str) -> str:
        last, demanded = last_steps(self.steps), self.effect.demanded
        return (
            f"    equality: {equality}\n    max_abs_difference: {_number(self.effect.bound)}\n    guards:\n"
            f"      steps: {self.steps}\n      distinct_batches: {self.steps}\n"
            f"      training_effect: {{control: untrained, last: {last}, at_least: {_number(demanded)}}}\n"
        )

    def _repeats(self) -> str:
        return self._claim(
            "REPEATS",
            "Two plain runs are equal in bits",
            "repeatability",
            f"    candidate: plain\n{self._equality('bitwise')}",
            f"Without this no other difference means anything. {self.effect.why}",
            "Weights or data come from a generator that the seed does not reach, or an operation adds in the order of "
            "arrival.",
            "other_losses, one_batch, flat_loss, nan_tail, no_steps",
        )

    def _captures(self) -> str:
        return self._claim(
            "CAPTURES",
            "The whole step is captured, and replayed once a step",
            "capture",
            "    candidate: captured\n    captures: 1\n",
            "Every batch has the same shapes: one capture serves them all.",
            "Something in the step waits for the device, or needs a value on the host: the message names its line.",
            "doubled_step, dropped_step, second_capture, skipped_update",
        )

    def _same(self) -> str:
        return self._claim(
            "SAME",
            "The captured step trains as the plain one does, in bits",
            "trajectory_match",
            f"    candidate: captured\n    baseline: plain\n{self._equality('bitwise')}",
            f"Both arms run the same operations in the same order. {self.effect.why}",
            "The batch is rebound and not copied, or a learning rate is frozen in the capture.",
            "stale_batch, doubled_step, dropped_last_update, one_batch, flat_loss, nan_tail, no_steps",
        )

    def _syncs(self) -> str:
        return self._claim(
            "SYNCS",
            "The plain step never waits for the device",
            "host_syncs",
            "    candidate: {arm: plain, exactly: 0}\n    control: {arm: waiting, exactly: 1}\n",
            "A step that waits for the device can be neither captured nor overlapped with what the host does.",
            "An .item(), a print, a Python `if` on a tensor, a boolean mask; the message names file and line.",
            "extra_sync, rare_sync, noisy_control",
        )

    def _compiled(self) -> str:
        return self._claim(
            "COMPILED",
            "The step through torch.compile trains as the plain one does, within a bound",
            "trajectory_match",
            f"    candidate: compiled\n    baseline: plain\n{self._equality('within')}",
            f"torch.compile fuses operations, and so rounds otherwise than the plain step. {self.effect.why}",
            "A graph was compiled for a value that has changed since, or the step branches on what the compiler took "
            "for constant.",
            "stopped_training, one_batch, flat_loss, nan_tail, no_steps",
        )

    def _faster(self, claim: str, arm: str, trajectory: str, fault: str) -> str:
        return self._claim(
            claim,
            f"The {arm} step is not slower than the plain one",
            "throughput_ratio",
            f"    candidate: {arm}\n    baseline: plain\n    at_least: 1.0\n    processes: 5\n    confidence: 0.95\n"
            f"    trajectory: {self.claim_id(trajectory)}\n",
            "1.0 is what any optimization has to reach; five processes are the fewest that can decide. Demand what it "
            "is meant to give, with the default of 12 processes, once that is known.",
            "The step is long enough that launching its kernels costs nothing, or something else used the GPU.",
            f"slow_candidate, slow_baseline, {fault}",
        )


def _path_lines(wanted: Path | None, folder: Path) -> str:
    """Lines that let an adapter in `folder` import from `wanted`, as `python wanted/file.py` would."""
    if wanted is None:
        return ""
    inside = wanted.relative_to(folder) if wanted.is_relative_to(folder) else None
    place = repr(str(wanted)) if inside is None else f"str(Path(__file__).parent / {str(inside)!r})"
    imports = "import sys\n" if inside is None else "import sys\nfrom pathlib import Path\n"
    return f"{imports}\nsys.path.insert(0, {place})\n\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False)


def _one_line(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")
