"""Draft a trainer's first adapter and contracts as texts: `harness init` writes them, `harness try` runs the first.

There are three templates, the same for every step: a step that is captured, a step with another optimization, and what
lies between and after the first steps (a long run, evaluations, saving and resuming). A trial chooses what is compared
(`Choice`). No number in them comes from a run: a first run may be that of a step that is wrong.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.contract.schema import SCHEMA_VERSION
from harness.first_contract.step_source import GIVEN, StepSource, id_of, stem_of, yaml_text

STEPS = 211  # a prime: no period of a trainer's (accumulated batches, a log, a synchronization) ends with it
BATCHES = 43  # that differ at least: a small set of data begins anew after them
LONG = 10_000  # the most steps of the long run, and its steps where its contract is apart
LONG_AT_LEAST = 500  # a training that ends by itself has at least so many
TOLERANCE = "1.0e-3"
WHY_TOLERANCE = (
    "A thousandth of the loss: float32 rounds to 6e-8 of a value, and sums in another order move a loss by some times "
    "that, more as training goes on. Half precision needs more: change the number, and say here why."
)

EVALUATED = "1.0e-2"
ENDS_SHARE = "0.01"
ENDS = f"    ends: {{control: nudged, at_most: {ENDS_SHARE}}}\n"
WHY_ENDS = (
    "The ends are compared, too, since averaged weights, running statistics and the last update are in no loss: a "
    "hundredth of the plain step's way."
)

# a floor that asks for no number of a run: a learning rate of 1e-8 moves weights by some 1e-5 in as many steps
FLOOR = "      floor: {control: untrained, moved: 1.0e-3, standard_errors: 5}\n"

# a gain that a CPU decides: the optimized arm is another step; where speed is timed, that claim says what is gained
SWITCHED_ON = "    switched_on: true\n"

OUTSIDE_SHARE = 0.5
WHY_OUTSIDE = (
    "What is left outside is the trainer's choice, an optimizer say. Half of the device's time is the most, as half of "
    "the operations is without a GPU: beyond that the graph is the smaller part of the step. Put a smaller share, once "
    "it is known what is left outside."
)
MEMORY_RATIO = "3.0"
WHY_MEMORY = (
    "A graph keeps a pool of its own, beside what the warm-up before it took: a plain step's memory twice. The third "
    "is for what libraries take for each stream, which is most of a small step. Demand less, once it is known."
)


WHY_WARM = "the step makes state of its own in its first execution, which no capture can hold"

LEFT_TO_THE_CAPTURE = (
    "The batch is rebound and not copied, a number that changes from step to step is frozen in the capture, or its "
    "warm-up was not undone."
)
TRAINS_OTHERWISE = "stale_batch, doubled_step, dropped_last_update, one_batch, barely_trained, nan_tail, no_steps"
ROUNDS_OTHERWISE = "unsteady_loss, half_moved, statistics_updated_twice, one_batch, barely_trained, nan_tail, no_steps"
FAULT_OF_TIMED = {"bitwise": "other_losses", "within": "stopped_training", "noise": "larger_losses"}

TRAINING_ARGUMENTS = "what you want to change, as in TrainingArguments(…): bf16=True, use_liger_kernel=True"

Equality = Literal["bitwise", "within", "noise"]
COMPARED = {"bitwise": "every bit", "within": "within rounding", "noise": "within the plain step's own noise"}
AT_COMMIT = "at_commit"  # the arm that trains as the commit does


@dataclass(frozen=True)
class Choice:
    """The strongest comparison of the arms that is fair, by what was measured."""

    equality: Equality = "bitwise"
    deterministic: bool = False  # the compared arms run under torch's deterministic algorithms; speed is timed without
    repeats: bool | None = True  # the plain step repeats its bits under these settings; None: it could not be tried
    why: str = ""


@dataclass(frozen=True)
class Arms:
    """What this machine allows besides a captured and a plain arm."""

    compiled: bool  # torch.compile: there is a C++ compiler
    timed: bool  # there is a CUDA device
    memory: bool  # a CUDA device's memory is counted, and MEMORY claims what the captured step takes of it


@dataclass(frozen=True)
class Draft:
    """An adapter and contracts for one step."""

    source: StepSource
    steps: int
    arms: Arms
    unfit: Mapping[str, str] = field(default_factory=dict)  # claims that are left out by what was measured, and why
    choice: Choice = Choice()
    undecided: str = ""  # which claim no choice decides, and why
    resumes: bool = False  # the step was seen to have `save` and `load`
    host_values: Mapping[str, str] = field(default_factory=dict)  # that no replay changes, with what reads each
    gain: bool = True  # an optimized arm must be another step than the plain one, where no speed is timed
    long: int | None = None  # steps of the long run, in addition to the other claims; None: it is in the contract apart
    warm_steps: int = 0  # plain ones before the capture, where the step was seen to make state in its first one
    commit_named: str = ""  # what the commit was asked for by, such as a branch
    commit: str = ""  # the plain step is compared with the same function at this commit, and no other arm with it

    @property
    def adapter_name(self) -> str:
        return f"{self._stem}_harness.py"

    @property
    def contract_name(self) -> str:
        return f"{self._id}.yaml"

    @property
    def long_contract_name(self) -> str:
        return f"{self._id.removesuffix('-v1')}-long-v1.yaml"

    @property
    def optimizes(self) -> bool:
        """Return True if an arm has an optimization that is not a capture: the step's, or by a trainer's arguments."""
        return not self.commit and (self.source.makes_trainer or "optimized" in self.source.arguments)

    @property
    def captures_itself(self) -> bool:
        """Return True if the step makes its own capture, so that its author claims one."""
        return "captured" in self.source.arguments

    @property
    def equality(self) -> Equality:
        """Return how the candidate is compared; an optimization that is not a capture rounds differently."""
        return "within" if self.optimizes else self.choice.equality

    @property
    def left_out(self) -> list[str]:
        """Return which claims are left out because of what was measured, and why."""
        lines = []
        if not self.choice.repeats:
            unfit = [self.claim_id("REPEATS"), *([self.claim_id("COMPILED")] if self._compiles else [])]
            why = "does not repeat its bits" if self.choice.repeats is False else "was not seen to repeat its bits"
            lines.append(f"{', '.join([*unfit, self.long_contract_name])}, since the plain step {why}")
        absent = {"FASTER": not self.arms.timed, "LONG": self.equality != "bitwise"}
        asked = ((claim, why) for claim, why in self.unfit.items() if not absent.get(claim, False))
        return [*lines, *(f"{self.claim_id(claim)}, since {why}" for claim, why in asked)]

    @property
    def candidate(self) -> str:
        """Return the arm that is compared with `reference`."""
        if self.commit:
            return "plain"
        return "optimized" if self.optimizes else "captured"

    @property
    def reference(self) -> str:
        """Return the arm that claims name as their baseline."""
        return AT_COMMIT if self.commit else "plain"

    @property
    def _stem(self) -> str:
        return stem_of(self.source.module)

    @property
    def _id(self) -> str:
        return id_of(self._stem)

    def claim_id(self, claim: str) -> str:
        return f"{self._id.removesuffix('-v1').upper()}-{claim}"

    def adapter(self, folder: Path) -> str:
        """Return the adapter's text, for a file in `folder`."""
        source = self.source
        given = ", ".join(f"{name}={GIVEN[name]}" for name in source.arguments)
        itself = "    captures_itself = True\n" if self.captures_itself else ""
        room, made = ("extras.trainers", "trainer") if source.makes_trainer else ("system", "step")
        return (
            f'"""How the contract harness trains with {_one_line(source.asked)}: yours to change."""\n\n'
            f"{_path_lines(source.folder, folder)}"
            f"from harness.{room}.made_{made} import Made{made.title()}System\n\n\n"
            f"class System(Made{made.title()}System):\n"
            f'    name = "{source.module}:{source.function}"\n{itself}\n'
            "    def build(self, workload, arm):\n"
            f"        from {source.module} import {source.function}\n\n"
            f"        return {source.function}({given})\n"
        )

    def contract(self) -> str:
        """Return the text of the contract about single steps."""
        claims = [self._repeats()] if self.choice.repeats else []
        claims += [self._captures()] if self._captured and "CAPTURES" not in self.unfit else []
        claims += [self._same(), *self._gradients()]
        claims += [self._syncs()] if self._harness_captures else []
        claims += [self._compiled()] if self._compares_compiled else []
        claims += [self._resumes()] if self._resumes_at_once else []
        if self.arms.memory and self.equality == "bitwise":
            claims.append(self._memory())
        if self._times:
            in_bits = self.equality == "bitwise" and self.choice.deterministic  # what is timed repeats none
            claims += [self._timed()] if in_bits else []
            named, equality = ("TIMED", "noise") if in_bits else (self.same_name, self.equality)
            claims.append(self._faster("FASTER", self.candidate, named, FAULT_OF_TIMED[equality]))
        if self._times and self._compares_compiled:
            claims.append(self._faster("COMPILED-FASTER", "compiled", "COMPILED", FAULT_OF_TIMED["within"]))
        workloads = {"small": self.steps}
        if self.long is not None:
            claims.append(self._long(self.long))
            workloads["long"] = self.long
        title = f"{{}} {'trainer' if self.source.makes_trainer else 'step'} of {{}} trains like the plain one"
        return self._file(self._id, title, workloads, self._arms(), claims)

    @property
    def has_long_run(self) -> bool:
        """Return True if a claim compares a captured step in bits over a long run."""
        return bool(self.choice.repeats) and self.equality == "bitwise" and "LONG" not in self.unfit

    def long_contract(self) -> str:
        """Return the text of the contract about what lies between steps and after the first of them, or "".

        Its claims need an arm that repeats its bits, so a plain step that does not has no such contract. Nor has a
        trainer, whose loop evaluates and saves by itself, or a comparison of two commits.
        """
        if not self.choice.repeats or self.source.makes_trainer or self.commit:
            return ""
        apart = self.has_long_run and self.long is None
        claims = [self._evaluated(), *([] if self._resumes_at_once else [self._resumes()])]
        claims += [self._long(LONG)] if apart else []
        title = "A long run of {1} goes on as it began, and through evaluations and checkpoints"
        workloads = {"small": self.steps} | ({"long": LONG} if apart else {})
        identity = self.long_contract_name.removesuffix(".yaml")
        return self._file(identity, title, workloads, self._two_arms(), claims)

    @property
    def _resumes_at_once(self) -> bool:
        """Return True if the first contract claims it: unless the step can, the claim would keep the gate closed."""
        return self.resumes and bool(self.choice.repeats)

    @property
    def same_name(self) -> str:
        """Return the name of the claim that compares training."""
        if self.commit:
            return "AS-COMMIT"
        return "WITHIN" if self.optimizes else "SAME"

    @property
    def _times(self) -> bool:
        return self.arms.timed and "FASTER" not in self.unfit

    @property
    def _compares_compiled(self) -> bool:
        """Return True if there is a claim about the compiled arm: its bound needs a plain step that repeats itself."""
        return self._compiles and bool(self.choice.repeats)

    @property
    def _compiles(self) -> bool:
        """Return True if there is an arm through torch.compile: the step has no optimization of its own."""
        return self.arms.compiled and self._harness_captures

    @property
    def _captured(self) -> bool:
        """Return True if there is an arm that is captured: of two commits only by a step that captures itself.

        What trains as it did may be no step that can be captured, and then it was none before.
        """
        return not self.optimizes and not self.source.makes_trainer and (self.captures_itself or not self.commit)

    @property
    def _harness_captures(self) -> bool:
        return self._captured and not self.captures_itself

    def _file(
        self, identity: str, title: str, workloads: dict[str, int], arms: list[tuple[str, str]], claims: list[str]
    ) -> str:
        named = f"{self.source.module}:{self.source.function}"
        sizes = {name: self.source.defaults.get(name, 1) for name in ("batch_size", "seq_len")}
        unknown = [name for name in sizes if name not in self.source.arguments]
        comment = f"  # {' and '.join(unknown)}: {named} has its own\n" if unknown else ""
        return (
            f"schema: {SCHEMA_VERSION}\n"
            f"id: {identity}\n"
            f"title: {title.format('An optimized' if self.optimizes else 'A captured', named)}\n"
            f"system: {self.adapter_name.removesuffix('.py')}:System\n\n"
            f"workloads:\n{comment}"
            + "".join(
                f"  {name}: {{model: {yaml_text(self.source.function)}, batch_size: {sizes['batch_size']}, "
                f"seq_len: {sizes['seq_len']}, steps: {steps}}}\n"
                for name, steps in workloads.items()
            )
            + "\narms:\n"
            + "".join(f"  {name}: {settings}\n" for name, settings in arms)
            + self._named_host_values()
            + "\nclaims:\n"
            + "\n".join(claims)
        )

    def _named_host_values(self) -> str:
        """Return `host_values` with empty reasons. No contract may have these: a person must write the reason."""
        if not self.host_values:
            return ""
        named = [f"  {json.dumps(name)}: ''  # {_one_line(read)}\n" for name, read in self.host_values.items()]
        why = "# No replay changes these numbers of the step. Say why that is right, or keep them in tensors."
        return "".join(["\n", why, "\nhost_values:\n", *named])

    def _arm(self, settings: str) -> str:
        return f"{{{settings}{', deterministic: true' if self.choice.deterministic else ''}}}"

    @property
    def _settings(self) -> str:
        if self.commit:
            return "capture: none"
        if "optimized" in self.source.arguments:
            return "capture: none, optimized: true"
        if self.source.makes_trainer:
            changed = "torch_compile" if self.arms.compiled else "gradient_checkpointing"
            return f'capture: none, arguments: "{changed}=True"'
        return f"capture: step, warm_steps: {self.warm_steps}" if self.warm_steps else "capture: step"

    def _two_arms(self) -> list[tuple[str, str]]:
        candidate = f"{self._arm(self._settings)}{f' # {WHY_WARM}' if self.warm_steps else ''}"
        return [(self.candidate, candidate), (self.reference, self._arm("capture: none"))]

    def _arms(self) -> list[tuple[str, str]]:
        arms, compiled = self._two_arms(), "capture: none, compile: true"
        if "arguments: " in arms[0][1]:
            arms[0] = arms[0][0], f"{arms[0][1]} # {TRAINING_ARGUMENTS}"
        if self.commit and self._captured:
            arms.append(("captured", self._arm("capture: step")))
        arms.append(("untrained", f"{self._arm('capture: none, trains: false')} # plain, and every update undone"))
        if self.equality == "within" or self._compares_compiled:
            nudged = self._arm("capture: none")
            arms.append(("nudged", f"{nudged} # plain; begun a rounding away, as a control"))
        if self._harness_captures:
            waiting = self._arm("capture: none, waits: true")
            arms.append(("waiting", f"{waiting} # reads one value from the device, nothing else"))
        if self._compares_compiled:
            arms.append(("compiled", self._arm(compiled)))
        if self._times and self.choice.deterministic:
            arms += [
                (f"{self.candidate}_timed", f"{{{self._settings}}}"),
                (f"{self.reference}_timed", "{capture: none}"),
            ]
            arms += [("compiled_timed", f"{{{compiled}}}")] if self._compares_compiled else []
        return arms

    def _claim(
        self, claim: str, title: str, kind: str, body: str, why: str, if_fails: str, faults: str, on: str = "small"
    ) -> str:
        return (
            f"  - id: {self.claim_id(claim)}\n    title: {title}\n    kind: {kind}\n{body}    judged_on: [{on}]\n"
            f"    why: >-\n{_wrapped(why)}\n    if_fails: >-\n{_wrapped(if_fails)}\n    falsified_by: [{faults}]\n"
        )

    def _equality(self, equality: Equality, floor: str = FLOOR) -> str:
        bound = "" if equality == "noise" else f"    max_relative_difference: {TOLERANCE}\n"
        return (
            f"    equality: {equality}\n{bound}    guards:\n"
            f"      steps: {self.steps}\n      distinct_batches: {min(self.steps, BATCHES)}\n{floor}"
        )

    def _repeats(self) -> str:
        return self._claim(
            "REPEATS",
            "Two plain runs are equal in bits",
            "repeatability",
            # the first answer needs the plain arm alone; that it learns, the comparisons ask
            f"    candidate: plain\n{self._equality('bitwise', floor='')}",
            "Without this no other difference means anything. The bound is shown beside the bits.",
            "Weights or data come from a generator that the seed does not reach, or an operation adds in the order of "
            "arrival.",
            "other_losses, one_batch, nan_tail, no_steps",
        )

    def _captures(self) -> str:
        itself = self.captures_itself
        return self._claim(
            "CAPTURES",
            f"{'Most of the step' if itself else 'The whole step'} is captured, and replayed once a step",
            "capture",
            "    candidate: captured\n    captures: 1\n    per_shape: true\n"
            + (f"    outside_share_at_most: {OUTSIDE_SHARE}\n" if itself else ""),
            f"One capture serves all batches of one shape.{f' {WHY_OUTSIDE}' if itself else ''}",
            "Something in the step waits for the device, or needs a value on the host: the message names its line.",
            f"doubled_step, dropped_step, second_capture, capture_each_step, {'decoy_graph, ' if itself else ''}"
            # on a device its copies are work outside the graph, which is found first
            f"{'' if self.arms.timed else 'remembered_step, '}skipped_update",
        )

    def _memory(self) -> str:
        return self._claim(
            "MEMORY",
            f"The captured step takes at most {MEMORY_RATIO} times the plain one's memory",
            "peak_memory",
            f"    candidate: captured\n    baseline: plain\n    at_most_ratio: {MEMORY_RATIO}\n    of: reserved\n"
            f"    trajectory: {self.claim_id('SAME')}\n",
            WHY_MEMORY,
            "Each shape is captured into a pool of its own (name one pool for all, and capture the largest shape "
            "first), or outputs of the warm-up are kept after their last use.",
            "retained_tensors, hidden_memory, doubled_step",
        )

    def _same(self) -> str:
        compared = f"    candidate: {self.candidate}\n    baseline: {self.reference}\n{self._equality(self.equality)}"
        if self.commit:
            return self._as_commit(compared)
        if self.equality == "noise":
            return self._in_noise(
                "SAME", compared, "The plain step repeats no bits, not even under deterministic algorithms."
            )
        if self.equality == "bitwise":
            return self._claim(
                "SAME",
                "The captured step trains as the plain one does, in bits",
                "trajectory_match",
                compared,
                "Both arms run the same operations in the same order. The bound is shown beside the bits.",
                LEFT_TO_THE_CAPTURE,
                TRAINS_OTHERWISE,
            )
        why = "" if self.optimizes else "The captured step runs other kernels than the plain one. "
        return self._claim(
            self.same_name,
            f"The {self.candidate} step trains as the plain one does, within rounding",
            "trajectory_match",
            f"{compared}{ENDS}{SWITCHED_ON if self.optimizes and self.gain and not self._times else ''}",
            f"{why}{WHY_TOLERANCE} {WHY_ENDS}",
            "The optimization left out a term, an update or a scale, or kept a value that has changed since. Counts "
            "that end apart: running statistics are updated twice where a block is recomputed.",
            ROUNDS_OTHERWISE,
        )

    def _as_commit(self, compared: str) -> str:
        within, bits = self.equality == "within", "in " if self.equality == "bitwise" else ""
        return self._claim(
            self.same_name,
            f"The step trains as it does at the commit, {bits}{COMPARED[self.equality]}",
            "trajectory_match",
            f"{compared}{ENDS if within else ''}",
            f"{WHY_TOLERANCE} {WHY_ENDS}" if within else "One function at two commits, from one seed, on one batch.",
            "The step computes something else since that commit.",
            ROUNDS_OTHERWISE if within else TRAINS_OTHERWISE,
        )

    def _timed(self) -> str:
        arms = f"    candidate: {self.candidate}_timed\n    baseline: {self.reference}_timed\n"
        compared = f"{arms}{self._equality('noise')}"
        return self._in_noise("TIMED", compared, "Speed is timed without deterministic algorithms, which are slower.")

    def _in_noise(self, claim: str, compared: str, why: str) -> str:
        return self._claim(
            claim,
            "The captured step trains as the plain one does, within the plain one's own noise",
            "trajectory_match",
            compared,
            f"{why} Runs of both arms differ no more between the arms than within them.",
            LEFT_TO_THE_CAPTURE,
            TRAINS_OTHERWISE,
        )

    def _gradients(self) -> list[str]:
        if "GRADIENTS" in self.unfit or self.equality == "noise" or self.source.makes_trainer:
            return []
        within = self.equality == "within"
        words = "within rounding" if within else "in bits"
        claim = self._claim(
            "GRADIENTS",
            f"The {self.candidate} step leaves the plain one's gradients, {words}",
            "gradient_match",
            f"    candidate: {self.candidate}\n    baseline: {self.reference}\n"
            f"    steps: [0, 1, 2, {self.steps - 1}]\n"
            f"    equality: {self.equality}\n"
            + (f"    max_relative_difference: {TOLERANCE}\n    control: nudged\n" if within else ""),
            "The first steps, since what is kept from an earlier one shows there first, and the last one."
            + (f" {WHY_TOLERANCE}" if within else ""),
            "Gradients are added to those of the step before, lie in memory that something else writes, or are none.",
            "stale_batch, " + ("doubled_gradients" if within else "other_gradients"),
        )
        return [claim]

    def _syncs(self) -> str:
        return self._claim(
            "SYNCS",
            "The captured step never waits for the device",
            "host_syncs",
            "    candidate: {arm: captured, exactly: 0}\n    control: {arm: waiting, exactly: 1}\n"
            "    reported: plain\n",
            "A replay that waits for the device is not overlapped with what the host does. Waits of the plain step are "
            "reported: a capture may leave them out.",
            "An .item(), a print, a Python `if` on a tensor, a boolean mask; the message names file and line.",
            "extra_sync, rare_sync, noisy_control",
        )

    def _compiled(self) -> str:
        return self._claim(
            "COMPILED",
            "The step through torch.compile trains as the plain one does, within a bound",
            "trajectory_match",
            f"    candidate: compiled\n    baseline: plain\n{self._equality('within')}{ENDS}",
            f"torch.compile fuses operations, and so rounds otherwise than the plain step. {WHY_TOLERANCE} {WHY_ENDS}",
            "A graph was compiled for a value that has changed since, or the step branches on what the compiler took "
            "for constant.",
            ROUNDS_OTHERWISE,
        )

    def _faster(self, claim: str, arm: str, trajectory: str, fault: str) -> str:
        timed = "_timed" if self.choice.deterministic else ""
        return self._claim(
            claim,
            f"The {arm} step is not slower than the plain one",
            "throughput_ratio",
            f"    candidate: {arm}{timed}\n    baseline: {self.reference}{timed}\n    at_least: 1.0\n"
            f"    processes: 5\n    confidence: 0.95\n"
            f"    trajectory: {self.claim_id(trajectory)}\n",
            "1.0 is what any optimization has to reach; five processes are the fewest that can decide. Demand what it "
            "is meant to give, with the default of 12 processes, once that is known.",
            "The step is long enough that launching its kernels costs nothing, or something else used the GPU.",
            f"slow_candidate, slow_baseline, {fault}",
        )

    def _evaluated(self) -> str:
        every = prime_at_most(self.steps // 4)
        return self._claim(
            "EVALUATED",
            "Evaluations between steps change nothing of the training, and return what the plain step's do",
            "evaluation",
            f"    candidate: {self.candidate}\n    every: {every}\n    evaluations: {self.steps // every}\n"
            f"    steps: {self.steps}\n    plain: plain\n    max_relative_difference: {EVALUATED}\n",
            "An evaluation reads: training goes on, in every bit, as if there had been none. It returns what the plain "
            "step's returns, but for a hundredth: ten times what the losses may differ by.",
            "The evaluation replays the captured training step, leaves the model in another mode, draws random numbers "
            "that training would have drawn, or writes over a batch in a static buffer. Where `evaluations_differ`, it "
            "reads a graph, weights or a mode that are not those of the step at hand.",
            "idle_evaluation, training_evaluation, drawing_evaluation, other_evaluation, no_steps",
        )

    def _resumes(self) -> str:
        saves = saves_of(self.steps)
        before = "    steps_before_load: 2\n" if self.captures_itself else ""  # its captures hold addresses
        baseline = "" if self.optimizes else "    baseline: plain\n"
        return self._claim(
            "RESUMES",
            "Saved and loaded by one process after the other, training goes on as if it had never stopped",
            "resume",
            f"    candidate: {self.candidate}\n{baseline}    save_at: {saves}\n{before}"
            f"    steps: {self.steps - saves[-1]}\n    equality: bitwise\n    max_abs_difference: 0.1\n",
            "A checkpoint holds all that the next step reads, also one that was made after a load. Round numbers end "
            "epochs and windows of many lengths, a prime ends none. The bound is shown beside the bits.",
            "`not_restored` names what was not saved or not loaded, or what later steps changed while it was written. "
            "`unequal_batches`: the data went on elsewhere. `differs` with all of it restored: a schedule that counts "
            "steps of its own, gradients of a batch that is not yet complete, or a replay of tensors that the load "
            "replaced. Before a save: another was made halfway there, and training went on otherwise.",
            "idle_load, weights_alone, restarted_data, doubled_first_step, no_steps",
        )

    def _long(self, steps: int) -> str:
        return self._claim(
            "LONG",
            f"{steps:,} captured steps train as plain ones, in bits, or as many as the training has",
            "long_replay",
            f"    candidate: captured\n    baseline: plain\n    steps: {min(steps, LONG_AT_LEAST)}\n    every: 100\n",
            "Runs that break late broke between 1,000 and 10,000 steps.",
            "The first differing block tells when: the end of a schedule, a counter, a buffer that is full.",
            "late_stale_batch, late_dropped_update, late_nan, no_steps",
            on="long",
        )


def saves_of(steps: int) -> list[int]:
    """Return after how many steps a checkpoint is saved: at multiples of 20 and of 24, and at a prime.

    At least four steps lie between two checkpoints: with fewer, the last one on a GPU is not a watched replay.
    """
    tens = steps // 40 * 20
    dozens = (tens + 4 + 23) // 24 * 24
    prime = next(each for each in range(dozens + 4, 2 * dozens + 8) if prime_at_most(each) == each)
    if tens and prime + 4 <= steps:
        return [tens, dozens, prime]
    middle = prime_at_most(steps // 2)
    return [middle, middle + 4] if middle + 8 <= steps else [middle]


def prime_at_most(number: int) -> int:
    """Return the largest prime up to `number`, at least 2: a multiple of a trainer's period would hide what it does."""
    return next(each for each in range(max(number, 2), 1, -1) if all(each % divisor for divisor in range(2, each)))


def _path_lines(wanted: Path | None, folder: Path) -> str:
    """Return the lines that let an adapter in `folder` import from `wanted`, as `python wanted/file.py` would."""
    if wanted is None:
        return ""
    inside = wanted.relative_to(folder) if wanted.is_relative_to(folder) else None
    place = repr(str(wanted)) if inside is None else f"str(Path(__file__).parent / {str(inside)!r})"
    imports = "import sys\n" if inside is None else "import sys\nfrom pathlib import Path\n"
    return f"{imports}\nsys.path.insert(0, {place})\n\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False)


def _one_line(text: str) -> str:
    """Return the text without what would end a docstring or is not UTF-8: names of folders may be any bytes."""
    return text.replace("\\", "/").replace('"', "'").encode("utf-8", "replace").decode("utf-8")
