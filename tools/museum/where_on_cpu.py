"""Find where a training and a changed copy of it differ first, on a CPU, for the figures in docs/first-difference.md.

    python tools/museum/where_on_cpu.py bugs [NAME ...]
    python tools/museum/where_on_cpu.py faults [NUMBER ...]

For each field bug, `bugs` takes the first claim that fails because of a difference, and prints the difference's place.
Compare the printed line with the entry's `fix`. For each fault, `faults` changes one line of a public trainer in
tests/support/public_trainers.py. An answer is right if it names the changed line, either as the line of the operator
that differs, or as a line that computed an input of this operator. Runs are forks of one process (forked_runs.py).
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import field_bugs
import forked_runs
from claims_in_process import CLAIM, contract_of
from verify_field_bugs import drafted, wanted_of

from harness.api.first_difference import locate
from harness.evidence.plan_records import Run
from harness.first_contract.trying import first_on_path
from harness.judging.first_difference import FirstDifference
from harness.judging.verdict import Status
from harness.planning.plan import where_run
from harness.report.located import located, path_rows
from harness.system.replay import sites

LIMIT_S = 120.0
TRAINERS = field_bugs.ROOT / "tests" / "support" / "public_trainers.py"
STEPS = 12
# Each entry: name of a trainer, a text that occurs once in its function, and the text that replaces it.
FAULTS = (
    ("gan_with_two_optimizers", "critic(made.detach())", "critic(0.9 * made.detach())"),
    ("gan_with_two_optimizers", "-critic(made)).mean()", "-critic(made)).sum()"),
    ("averaged_weights", "average.lerp_(parameter, 0.01)", "average.lerp_(parameter, 0.02)"),
    ("averaged_weights", "momentum=0.9)", "momentum=0.8)"),
    ("warm_up_and_cosine", "label_smoothing=0.1", "label_smoothing=0.0"),
    ("warm_up_and_cosine", "clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 0.5)"),
    ("warm_up_and_cosine", "total_iters=10", "total_iters=5"),
    ("accumulated_gradients", "(model(x), y) / 4", "(model(x), y) / 3"),
    ("dropout_and_batch_norm", "nn.BatchNorm2d(4)", "nn.BatchNorm2d(4, momentum=0.2)"),
    ("dropout_and_batch_norm", "weight_decay=1e-4", "weight_decay=0"),
    ("dropout_and_batch_norm", "nn.Dropout(0.2)", "nn.Dropout(0.1)"),
    ("truncated_backpropagation", "hidden.copy_(state.detach())", "hidden.copy_(hidden)"),
    ("autocast_and_scaler", 'torch.autocast("cpu", torch.bfloat16)', 'torch.autocast("cpu", torch.float16)'),
    ("contrast_with_a_queue", "% 64, other.detach()", "% 64, seen.detach()"),
    ("contrast_with_a_queue", "place.add_(16)", "place.add_(8)"),
    ("actor_and_critic", "advantage.detach()", "advantage"),
    ("actor_and_critic", "- 0.01 * entropy", "+ 0.01 * entropy"),
    ("variational_autoencoder", "(spread / 2).exp()", "spread.exp()"),
    ("variational_autoencoder", "lr=3e-3", "lr=1e-3"),
    ("distilled_from_a_frozen_teacher", "/ 2).softmax(1)", "/ 3).softmax(1)"),
    ("recomputed_activations", "functional.cross_entropy(scores,", "functional.cross_entropy(2 * scores,"),
)
SYSTEM = """
import importlib
from harness.system.step_function import StepFunctionSystem

class Planted(StepFunctionSystem):
    arm_options = {"module": str, "trainer": str}

    def build(self, workload, arm):
        settings = arm.settings()
        make = getattr(importlib.import_module(settings["module"]), settings["trainer"])
        return make(0, False) if "optimized" in make.__annotations__ else make(0)
"""


def forget_scripts() -> None:
    """Make the harness ignore the scripts in tools/ when it names lines of code. They call the training in each fork,
    so the harness would otherwise name their lines."""
    for name in ("is_own", "is_users_or_library"):
        vars(sites)[name] = partial(lambda asked, file: "/tools/" not in file and asked(file), vars(sites)[name])


def first_difference(run: Run, folder: Path) -> FirstDifference:
    """Return where the arms of a run differ first. Each run of the search is a fork that writes below `folder`."""
    number = count()
    return locate(run, lambda asked: [forked_runs.execute(asked, folder / str(next(number)), LIMIT_S)])


def ask_bug(entry: Path) -> None:
    """Print the first difference for the first claim of an entry that fails because of a difference."""
    with drafted(entry, "buggy", 0) as (draft, folder, contracts):
        plan = forked_runs.planned(contracts, wanted_of(draft, contracts, [], long=False))
        runs = {run.id: run for run in plan.runs}
        claims = {claim.id: claim for loaded in contracts for claim in loaded.contract.claims}
        judged = forked_runs.judged(contracts, plan, folder / "evidence", LIMIT_S)
        for unit, (verdict, _) in zip(plan.units, judged, strict=True):
            figures = {name: each.value for name, each in verdict.figures.items()}
            asked = where_run(claims[unit.claim], unit, [runs[name] for name in unit.runs], figures)
            if verdict.status is Status.FAIL and asked is not None:
                answer = first_difference(asked, folder / "where")
                print(f"{entry.stem} {verdict.reason}: {located(answer)}")
                print("   ", "; ".join(f"{part} {seen} {what}" for part, seen, what in path_rows(answer)), flush=True)
                return
        print(f"{entry.stem}: on this machine, no claim fails because of a difference", flush=True)


def changed(trainer: str, old: str, new: str) -> tuple[str, int]:
    """Return the trainers' source with one line of the trainer changed, and the number of that line."""
    text = TRAINERS.read_text(encoding="utf-8")
    start = text.index(f"\ndef {trainer}(")
    end = text.find("\ndef ", start + 1)
    place = text.index(old, start, end)
    if text.find(old, place + 1, end) >= 0:
        raise ValueError(f"`{old}` must occur once in {trainer}, but occurs more often")
    return text[:place] + new + text[place + len(old) :], text.count("\n", 0, place) + 1


def ask_fault(number: int) -> bool:
    """Print the first difference for the fault with this number. Return True if the answer names the changed line."""
    trainer, old, new = FAULTS[number]
    source, line = changed(trainer, old, new)
    texts = {"changed": source, "plain": TRAINERS.read_text(encoding="utf-8")}
    arms = {name: {"capture": "none", "trainer": trainer, "module": f"{name}_trainers"} for name in texts}
    claim = {**CLAIM, "candidate": "changed", "guards": {"steps": STEPS}}
    with tempfile.TemporaryDirectory() as name, first_on_path(Path(name)) as folder:
        for arm, text in texts.items():
            (folder / f"{arm}_trainers.py").write_text(text, encoding="utf-8")
        (folder / "planted_system.py").write_text(SYSTEM, encoding="utf-8")
        contract = contract_of("planted_system:Planted", claim, arms=arms)
        loaded: Any = SimpleNamespace(contract=contract)
        planned = forked_runs.planned([loaded])
        run = where_run(contract.claims[0], planned.units[0], planned.runs, {})
        if run is None:
            raise ValueError(f"{trainer} cannot be run: {planned.units[0].obstacle}")
        answer = first_difference(run, folder / "where")
    lines = [each for place in answer.places.values() for each in (place.line, *place.made_at)]
    is_named = any(each.endswith(f"_trainers.py:{line}") for each in lines)
    print(f"{number} {trainer}:{line} `{new}` {'NAMED' if is_named else 'not named'}: {located(answer)}", flush=True)
    return is_named


def main(what: str, *named: str) -> None:
    """Examine the named bugs or faults, or all of them."""
    forked_runs.prepare()
    forget_scripts()
    if what == "bugs":
        for entry in [field_bugs.ENTRIES / f"{name}.py" for name in named] or field_bugs.recorded():
            ask_bug(entry)
        return
    numbers = [int(each) for each in named] or range(len(FAULTS))
    print(f"{sum(map(ask_fault, numbers))} of {len(numbers)} name the changed line")


if __name__ == "__main__":
    main(*sys.argv[1:])
