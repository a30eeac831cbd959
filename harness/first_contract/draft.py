"""Draft an adapter and contracts for a step, as texts. `harness init` writes them, and `harness try` runs the first
contract.

The first contract is about single steps, either of a captured step or of a step with another optimization. The second
is about a long run, evaluations, and saving and resuming; some of its claims can be in the first contract instead. The
claims are macros in `claims.yaml.j2`. Trials decide how strictly arms are compared (`Choice`). No bound is taken from a
measurement, because the step that was measured may be wrong.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.contract import strict_yaml
from harness.contract.load import loaded_from
from harness.contract.rules import current_rules
from harness.contract.schema import SCHEMA_VERSION
from harness.devices import environment
from harness.errors import ContractError, HarnessError, UsageError
from harness.first_contract.step_source import GIVEN, StepSource, id_of, stem_of, yaml_text
from harness.run_directory.places import refuse_within_run, write_together

if TYPE_CHECKING:
    from jinja2.environment import TemplateModule

# Default number of steps: a prime number, so that no period of a trainer (such as accumulation) ends with the last
# step.
STEPS = 211
BATCHES = 43  # claims demand at least this number of different batches; further steps may repeat these batches
# largest number of steps of the long run; a long run with a separate contract has exactly this number of steps
LONG = 10_000
LONG_AT_LEAST = 500  # smallest number of steps of a long run

WHY_WARM = "the step creates state in its first execution, which no capture can hold"

FAULT_OF_TIMED = {"bitwise": "other_losses", "within": "stopped_training", "noise": "larger_losses"}

TRAINING_ARGUMENTS = "write your change here, as in TrainingArguments(…): bf16=True, use_liger_kernel=True"

Equality = Literal["bitwise", "within", "noise"]
COMPARED = {"bitwise": "every bit", "within": "within rounding", "noise": "within the plain step's own noise"}
AT_COMMIT = "at_commit"  # name of the arm that trains with the code of the baseline commit


@dataclass(frozen=True)
class Choice:
    """The strictest comparison of the arms that a correct step passes, as trials have shown."""

    equality: Equality = "bitwise"
    deterministic: bool = False  # True: compared arms use torch's deterministic algorithms, and timed arms do not
    repeats: bool | None = True  # True: under this choice, the plain step repeats its bits; None: not tried
    why: str = ""


@dataclass(frozen=True)
class Arms:
    """The additional arms and claims that this machine can execute and decide."""

    compiled: bool  # True: add an arm that uses torch.compile, which needs a C++ compiler
    timed: bool  # True: add claims about speed, which need a CUDA device
    memory: bool  # True: add the claim MEMORY, about the memory of the captured step on a CUDA device
    cuda: bool = False  # True: the machine has a CUDA device, and the workloads then require one


@dataclass(frozen=True)
class Draft:
    """An adapter and contracts for one step."""

    source: StepSource
    steps: int
    arms: Arms
    # name of each claim (such as GRADIENTS) that was left out because of a trial's result -> the reason
    unfit: Mapping[str, str] = field(default_factory=dict)
    choice: Choice = Choice()
    # a text that names the claim that no comparison of the arms can decide, and the reason; "": there is no such claim
    undecided: str = ""
    resumes: bool = False  # True: the step function has `save` and `load`
    # name of each Python number that no replay changes -> what reads the number
    host_values: Mapping[str, str] = field(default_factory=dict)
    # True: if no speed is timed, a claim requires instead that the optimized arm differs from the plain arm
    gain: bool = True
    # number of steps of the long run in the first contract; None: the long run, if any, is in a separate contract
    long: int | None = None
    warm_steps: int = 0  # number of plain steps before the capture; needed if the first step creates state
    commit_named: str = ""  # the name by which the user requested the commit, such as a branch
    # A commit: the plain step is compared with the step as it was in this commit. "": no commits are compared.
    commit: str = ""

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
        """Return True if the step has an optimization other than a capture: a changed step, or changed arguments of a
        trainer. Return False if commits are compared."""
        return not self.commit and (self.source.makes_trainer or "optimized" in self.source.arguments)

    @property
    def captures_itself(self) -> bool:
        """Return True if the step captures itself, so that the harness must not capture it. The step's function then
        has the argument `captured`."""
        return "captured" in self.source.arguments

    @property
    def equality(self) -> Equality:
        """Return how strictly the candidate is compared with the baseline. If the candidate has an optimization other
        than a capture, this is always `within`."""
        return "within" if self.optimizes else self.choice.equality

    @property
    def left_out(self) -> list[str]:
        """Return lines with the claims that the contracts leave out because of a trial's result, and with the
        reasons."""
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
        """Return the name of the arm under test, which is compared with `reference`."""
        if self.commit:
            return "plain"
        return "optimized" if self.optimizes else "captured"

    @property
    def reference(self) -> str:
        """Return the name of the arm that claims use as their baseline."""
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
        """Return the source text of the adapter, a Python file in `folder`."""
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
        claims = [_claim("repeats", self)] if self.choice.repeats else []
        claims += [_claim("captures", self)] if self._captured and "CAPTURES" not in self.unfit else []
        claims += [_claim("same", self)]
        claims += [_claim("gradients", self)] if self._compares_gradients else []
        claims += [_claim("syncs", self)] if self._harness_captures else []
        claims += [_claim("compiled", self)] if self._compares_compiled else []
        claims += [self._resumes()] if self._resumes_at_once else []
        claims += [_claim("memory", self)] if self.arms.memory and self.equality == "bitwise" else []
        if self._times:
            # timed arms do not use deterministic algorithms, so they do not repeat their bits
            in_bits = self.equality == "bitwise" and self.choice.deterministic
            claims += [_claim("timed", self)] if in_bits else []
            named, equality = ("TIMED", "noise") if in_bits else (self.same_name, self.equality)
            claims.append(_claim("faster", self, "FASTER", self.candidate, named, FAULT_OF_TIMED[equality]))
        if self._times and self._compares_compiled:
            within = FAULT_OF_TIMED["within"]
            claims.append(_claim("faster", self, "COMPILED-FASTER", "compiled", "COMPILED", within))
        workloads = {"small": self.steps}
        if self.long is not None:
            claims.append(self._long(self.long))
            workloads["long"] = self.long
        title = f"{{}} {'trainer' if self.source.makes_trainer else 'step'} of {{}} trains like the plain one"
        return self._file(self._id, title, workloads, self._arms(), claims)

    @property
    def has_long_run(self) -> bool:
        """Return True if a claim requires that the captured step and the plain step have equal bits over a long run."""
        return bool(self.choice.repeats) and self.equality == "bitwise" and "LONG" not in self.unfit

    def long_contract(self) -> str:
        """Return the text of the contract about evaluations, checkpoints and the long run, or "" if there is none.

        Its claims need a plain step that repeats its bits. A trainer has no such contract, because its own loop
        evaluates and saves. A comparison of two commits has none, either.
        """
        if not self.choice.repeats or self.source.makes_trainer or self.commit:
            return ""
        apart = self.has_long_run and self.long is None
        claims = [
            _claim("evaluated", self, prime_at_most(self.steps // 4)),
            *([] if self._resumes_at_once else [self._resumes()]),
        ]
        claims += [self._long(LONG)] if apart else []
        title = "A long run of {1} trains like the plain one, also through evaluations and checkpoints"
        workloads = {"small": self.steps} | ({"long": LONG} if apart else {})
        identity = self.long_contract_name.removesuffix(".yaml")
        return self._file(identity, title, workloads, self._two_arms(), claims)

    @property
    def _resumes_at_once(self) -> bool:
        """Return True if the first contract has the claim about saving and resuming. This claim needs a step with
        `save` and `load`. Without these functions, the claim could not be decided, and the gate would stay closed."""
        return self.resumes and bool(self.choice.repeats)

    @property
    def same_name(self) -> str:
        """Return the name of the claim that both arms train the same."""
        if self.commit:
            return "AS-COMMIT"
        return "WITHIN" if self.optimizes else "SAME"

    @property
    def _times(self) -> bool:
        return self.arms.timed and "FASTER" not in self.unfit

    @property
    def _compares_compiled(self) -> bool:
        """Return True if a claim compares the compiled arm, which needs a plain step that repeats its bits."""
        return self._compiles and bool(self.choice.repeats)

    @property
    def _compiles(self) -> bool:
        """Return True if the draft has an arm that uses torch.compile. Return False if the step already has an
        optimization, such as a capture that its own code makes."""
        return self.arms.compiled and self._harness_captures

    @property
    def _captured(self) -> bool:
        """Return True if the draft has a captured arm. If commits are compared, it has one only if the step captures
        itself, because it may be impossible to capture the step at one of the commits."""
        return not self.optimizes and not self.source.makes_trainer and (self.captures_itself or not self.commit)

    @property
    def _harness_captures(self) -> bool:
        return self._captured and not self.captures_itself

    def _file(
        self, identity: str, title: str, workloads: dict[str, int], arms: list[tuple[str, str]], claims: list[str]
    ) -> str:
        named = f"{self.source.module}:{self.source.function}"
        known = [name for name in ("batch_size", "seq_len") if name in self.source.arguments]
        sizes = "".join(f"{name}: {self.source.defaults.get(name, 1)}, " for name in known)
        needs = ", needs: {device: cuda}" if self.arms.cuda else ""
        comment = "" if needs else "  # without a GPU, a CPU decides too, unless you add `needs: {device: cuda}`\n"
        return (
            f'schema: {SCHEMA_VERSION}\nrules: "{current_rules()}"\n'
            f"id: {identity}\n"
            f"title: {title.format('An optimized' if self.optimizes else 'A captured', named)}\n"
            f"system: {self.adapter_name.removesuffix('.py')}:System\n\n"
            f"workloads:\n{comment}"
            + "".join(
                f"  {name}: {{model: {yaml_text(self.source.function)}, {sizes}steps: {steps}{needs}}}\n"
                for name, steps in workloads.items()
            )
            + "\narms:\n"
            + "".join(f"  {name}: {settings}\n" for name, settings in arms)
            + self._named_host_values()
            + "\nclaims:\n"
            + "\n".join(claims)
        )

    def _named_host_values(self) -> str:
        """Return the section `host_values` of the contract, with empty reasons. A contract with empty reasons is
        refused, so a person must write them."""
        if not self.host_values:
            return ""
        named = [f"  {json.dumps(name)}: ''  # {_one_line(read)}\n" for name, read in self.host_values.items()]
        why = (
            "# No replay changes these numbers of the step. Explain why this is right, or keep the numbers in tensors."
        )
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
        arms.append(
            ("untrained", f"{self._arm('capture: none, trains: false')} # the plain step, with every update undone")
        )
        if self.equality == "within" or self._compares_compiled:
            nudged = self._arm("capture: none")
            arms.append(("nudged", f"{nudged} # the plain step, started a rounding away, as a control"))
        if self._harness_captures:
            waiting = self._arm("capture: none, waits: true")
            arms.append(("waiting", f"{waiting} # only reads one value from the device, instead of the step"))
        if self._compares_compiled:
            arms.append(("compiled", self._arm(compiled)))
        if self._times and self.choice.deterministic:
            arms += [
                (f"{self.candidate}_timed", f"{{{self._settings}}}"),
                (f"{self.reference}_timed", "{capture: none}"),
            ]
            arms += [("compiled_timed", f"{{{compiled}}}")] if self._compares_compiled else []
        return arms

    @property
    def distinct_batches(self) -> int:
        return min(self.steps, BATCHES)

    @property
    def compared(self) -> str:
        """Return how strictly the candidate is compared, in words such as `within rounding`."""
        return COMPARED[self.equality]

    @property
    def gains_untimed(self) -> bool:
        """Return True if a claim requires that the optimized arm differs from the plain arm, because no speed is
        timed."""
        return self.optimizes and self.gain and not self._times

    def _resumes(self) -> str:
        return _claim("resumes", self, saves_of(self.steps))

    def _long(self, steps: int) -> str:
        return _claim("long_run", self, steps, min(steps, LONG_AT_LEAST))

    @property
    def _compares_gradients(self) -> bool:
        return "GRADIENTS" not in self.unfit and self.equality != "noise" and not self.source.makes_trainer


def _claim(name: str, *given: object) -> str:
    """Return the text of a claim. name: its macro in `claims.yaml.j2`. given: the arguments of the macro."""
    text: str = getattr(_claims(), name)(*given)
    return text


@cache
def _claims() -> TemplateModule:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - the texts are YAML
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["wrapped"] = _wrapped
    return environment.get_template("claims.yaml.j2").module


def saves_of(steps: int) -> list[int]:
    """Return the numbers of steps after which checkpoints are saved: a multiple of 20, a multiple of 24, and a prime
    number. If `steps` is too small for these, return one or two numbers near the middle of the training.

    Checkpoints are at least four steps apart. Otherwise, on a GPU, the last step before a checkpoint would not be a
    replay that the harness observes.
    """
    tens = steps // 40 * 20
    dozens = (tens + 4 + 23) // 24 * 24
    prime = next(each for each in range(dozens + 4, 2 * dozens + 8) if prime_at_most(each) == each)
    if tens and prime + 4 <= steps:
        return [tens, dozens, prime]
    middle = prime_at_most(steps // 2)
    return [middle, middle + 4] if middle + 8 <= steps else [middle]


def prime_at_most(number: int) -> int:
    """Return the largest prime number up to `number`, at least 2. A prime number of steps is not a multiple of a
    trainer's intervals, for example of the number of steps between two lines of its log."""
    return next(each for each in range(max(number, 2), 1, -1) if all(each % divisor for divisor in range(2, each)))


def _path_lines(wanted: Path | None, folder: Path) -> str:
    """Return the lines of code by which an adapter in `folder` can import modules from the folder `wanted`."""
    if wanted is None:
        return ""
    inside = wanted.relative_to(folder) if wanted.is_relative_to(folder) else None
    place = repr(str(wanted)) if inside is None else f"str(Path(__file__).parent / {str(inside)!r})"
    imports = "import sys\n" if inside is None else "import sys\nfrom pathlib import Path\n"
    return f"{imports}\nsys.path.insert(0, {place})\n\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), 110, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False
    )


def _one_line(text: str) -> str:
    """Return the text without characters that would end a docstring or are not valid UTF-8. Names of folders may
    contain any bytes."""
    return text.replace("\\", "/").replace('"', "'").encode("utf-8", "replace").decode("utf-8")


COMPILERS = ("g++", "clang++", "c++")


def compiler_missing() -> str:
    """Return the reason why torch.compile cannot work on this machine: no C++ compiler. Return "" if there is one."""
    named = os.environ.get("CXX")
    if any(shutil.which(name) for name in ([named] if named else COMPILERS)):
        return ""
    return f"no C++ compiler ({named or ', '.join(COMPILERS)})"


def arms_here(*, compiled: bool, speed: bool = True) -> Arms:
    """Return the arms and claims that are requested and that this machine can execute."""
    cuda = environment.machine().cuda
    # The claim MEMORY is never drafted, because a suitable bound is not known. For a small step, the memory that
    # libraries allocate for each stream can be four times the plain step's memory, so this ratio must first be measured
    # on GPUs. One of the field bugs in `examples` has the claim MEMORY.
    return Arms(compiled=compiled and not compiler_missing(), timed=speed and cuda, memory=False, cuda=cuda)


def keep(draft: Draft, folder: Path, *, force: bool) -> list[Path]:
    """Write the adapter and the contracts into a project, and return their paths. Either all of these files are written
    or none. Raises UsageError if a file already exists and `force` is False, or if a file cannot be written."""
    paths = kept_files(draft, folder)
    require_free(paths, force=force)
    # leave out `host_values`, which is invalid until a person has written the reasons
    require_valid(replace(draft, host_values={}), folder)
    texts = (draft.adapter(folder), *_contracts(draft))
    write_together(dict(zip(paths, texts, strict=True)))
    return paths


def _contracts(draft: Draft) -> list[str]:
    """Return the texts of the contracts to write. The second contract is left out if it is empty."""
    return [text for text in (draft.contract(), draft.long_contract()) if text]


def require_valid(draft: Draft, folder: Path) -> None:
    """Raise HarnessError if Python cannot compile the adapter, or if a contract is invalid. Only a bug in the harness
    can cause this."""
    adapter, *contracts = kept_files(draft, folder)
    try:
        ast.parse(draft.adapter(folder), filename=str(adapter))
        for path, text in zip(contracts, _contracts(draft), strict=True):
            loaded_from(strict_yaml.parse(text, where=path.name), path)
    except (SyntaxError, ValueError, ContractError) as error:
        raise HarnessError(
            "the adapter and the contracts that the harness drafts must be valid",
            where=draft.source.place,
            got=f"{error}",
            remedy="this is a bug in the harness; to avoid it, give the function or its file another name",
        ) from error


def kept_files(draft: Draft, folder: Path) -> list[Path]:
    """Return the paths of the files to write: an adapter, and contracts in `contracts/` and `contracts-long/`."""
    paths = [folder / draft.adapter_name, folder / "contracts" / draft.contract_name]
    return [*paths, *([folder / "contracts-long" / draft.long_contract_name] if draft.long_contract() else [])]


def require_free(paths: Sequence[Path], *, force: bool) -> None:
    """Raise UsageError if a file exists and `force` is False, or if a path is inside a run directory."""
    for path in paths:
        refuse_within_run(path)
    there = [os.path.relpath(path) for path in paths if os.path.lexists(path)]
    if there and not force:
        raise UsageError(
            "`harness init` and `harness try` replace existing files only with --force",
            got=f"the existing {' and '.join(there)}",
            remedy=f"add --force, or move {'this file' if len(there) == 1 else 'these files'} away",
        )
