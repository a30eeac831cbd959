"""Plant faults in public trainers, a changed line each, and ask what differs first between the trainer and its change.

    python tools/museum/where_planted_faults.py [NUMBER ...]

The trainers are those of tests/support/public_trainers.py: correct ones, not written for this. An answer counts if it
names the changed line, as that of the operator that differs or as one that made what it reads. The others are for a
reader to judge: they may name the first operator that consumes what the line makes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import field_bugs
import forked_runs
from where_field_bugs import executing, forget_scripts

from harness.api.first_difference import locate
from harness.contract.load import load_contracts
from harness.planning.plan import where_run
from harness.report.located import located

TRAINERS = field_bugs.ROOT / "tests" / "support" / "public_trainers.py"
STEPS = 12
# trainer, what stands there once in its function, what stands there in the changed one
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


def changed(trainer: str, old: str, new: str) -> tuple[str, int]:
    """Return the source with one line of the trainer changed, and that line's number."""
    lines = TRAINERS.read_text(encoding="utf-8").split("\n")
    first = next(number for number, text in enumerate(lines) if text.startswith(f"def {trainer}("))
    after = next((n for n, text in enumerate(lines) if n > first and text.startswith("def ")), len(lines))
    [at] = [number for number in range(first, after) if old in lines[number]]
    lines[at] = lines[at].replace(old, new)
    return "\n".join(lines), at + 1


def contract_of(trainer: str) -> str:
    """Return a contract that compares the trainer with its change, in bits."""
    arms = {
        name: {"capture": "none", "trainer": trainer, "module": module}
        for name, module in (("changed", "changed_trainers"), ("plain", "plain_trainers"))
    }
    claim = {
        **dict.fromkeys(("title", "why", "if_fails"), "planted"),
        "id": "SAME",
        "kind": "trajectory_match",
        "candidate": "changed",
        "baseline": "plain",
        "judged_on": ["w"],
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": STEPS},
    }
    workload = {"model": "any", "batch_size": 16, "seq_len": 1, "steps": STEPS, "needs": {"device": "cpu"}}
    contract = {
        "schema": "contract/v2",
        "id": "planted",
        "title": "planted",
        "system": "planted_system:Planted",
        "workloads": {"w": workload},
        "arms": arms,
        "claims": [claim],
    }
    return json.dumps(contract)


def ask(number: int) -> bool:
    """Print the answer for a fault. Return True if it names the changed line."""
    trainer, old, new = FAULTS[number]
    source, line = changed(trainer, old, new)
    with (
        tempfile.TemporaryDirectory(prefix="planted-") as name,
        field_bugs.first_on_path(Path(name)) as folder,
    ):
        texts = {"changed_trainers": source, "plain_trainers": TRAINERS.read_text(encoding="utf-8")}
        for module, text in {**texts, "planted_system": SYSTEM}.items():
            (folder / f"{module}.py").write_text(text, encoding="utf-8")
        (folder / "planted.yaml").write_text(contract_of(trainer), encoding="utf-8")
        [loaded] = load_contracts([folder / "planted.yaml"])
        planned = forked_runs.planned([loaded])
        run = where_run(loaded.contract.claims[0], planned.units[0], planned.runs, {})
        if run is None:
            raise ValueError(f"nothing to locate in {trainer}")
        answer = locate(run, executing(folder / "where"))
    named = [each for place in answer.places.values() for each in (place.line, *place.made_at)]
    is_named = any(each.endswith(f"_trainers.py:{line}") for each in named)
    print(f"{number} {trainer}:{line} `{new}` {'NAMED' if is_named else 'not named'}: {located(answer)}", flush=True)
    return is_named


def main(numbers: Sequence[int]) -> int:
    forked_runs.prepare()
    forget_scripts()
    asked = numbers or range(len(FAULTS))
    print(f"{sum(map(ask, asked))} of {len(asked)} name the changed line")
    return 0


if __name__ == "__main__":
    sys.exit(main([int(each) for each in sys.argv[1:]]))
