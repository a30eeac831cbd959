"""Try correct trainers with the contract templates of `harness init`: the examples, and steps of public trainers.

    python tools/museum/correct_trainers.py [NAME ...]

NAME is the folder of an example, or a function in tests/support/public_trainers.py. Without NAME, all are tried. Each
claim runs as many steps as in `harness init`. The results are printed and stored in examples/field_bugs/results.csv for
docs/field-bugs.md. For an example, the template is filled with the system, the model, the sizes and the settings of
both arms in the example's contract. The exit code is 1 if a claim is violated or undecided, or ends with an error.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import field_bugs
import forked_runs
from field_bug_results import Said
from field_bugs import CORRECT, ROOT, SHIPPED
from verify_field_bugs import LIMIT_S, device_name, show_claims, try_form, wanted_of

from harness.contract.load import load_contract
from harness.contract.schema import Arm
from harness.first_contract.draft import STEPS, Arms, Draft
from harness.first_contract.step_source import StepSource

PUBLIC = ROOT / "tests" / "support" / "public_trainers.py"
# Claim that is left out for examples, because only systems of `harness.system.made_step` offer its control arm.
NOT_OURS = "SYNCS"


def try_example(name: str) -> list[Said]:
    """Return the results of the template's claims for an example."""
    adapter = ROOT / "examples" / name / "adapter.py"
    takes = ("seed", "optimized") if SHIPPED[name][2] == "optimized" else ("seed",)
    source = StepSource(name, name, "step", None, adapter, 1, takes, {})
    draft = Draft(source, STEPS, Arms(compiled=False, timed=False, memory=True), gain=False)
    with tempfile.TemporaryDirectory(prefix="correct-trainer-") as folder:
        contracts = field_bugs.write_templates(draft, Path(folder), lambda text: with_example(name, text))
        known = wanted_of(draft, contracts, [], long=False)
        work = forked_runs.planned(contracts, [each for each in known if each != draft.claim_id(NOT_OURS)])
        found = forked_runs.judged(contracts, work, Path(folder) / "evidence", LIMIT_S)
        return [field_bugs.said_of(draft, verdict, seconds) for verdict, seconds in found]


def with_example(name: str, text: str) -> str:
    """Return the text of a template, filled with an example's system, small workload and arms."""
    shipped = load_contract(ROOT / "examples" / name / "contract.yaml").contract
    ours, plain, form = SHIPPED[name]
    small = shipped.workloads["small"]
    lines = {
        r"system: .*": f"system: {shipped.system}",
        r"(  \w+: \{)model: \w+, batch_size: 1, seq_len: 1": rf"\1model: {small.model}, batch_size: "
        f"{small.batch_size}, seq_len: {small.seq_len}",
        rf"  {form}: .*": f"  {form}: {_settings(shipped.arms[ours])}",
        r"  (plain|nudged): .*": rf"  \1: {_settings(shipped.arms[plain])}",
        r"  untrained: .*": f"  untrained: {_settings(shipped.arms['untrained'])}",
    }
    for pattern, line in lines.items():
        text = re.sub(rf"(?m)^{pattern}", line, text)
    return text


def _settings(arm: Arm) -> str:
    return json.dumps({"capture": arm.capture, **arm.settings()})


def main() -> int:
    sys.path.insert(0, str(PUBLIC.parent))
    forked_runs.prepare()
    from public_trainers import TRAINERS

    wrong = []
    for name in sys.argv[1:] or [*SHIPPED, *TRAINERS]:
        said = try_example(name) if name in SHIPPED else try_form(PUBLIC, name, seed=0, steps=STEPS)
        right = field_bugs.is_right("mended", said)
        print(f"== {name}: {'as it should be' if right else 'NOT as it should be'}")
        show_claims(said)
        wrong += [] if right else [name]
        field_bugs.keep_record(name, {0: {CORRECT: said}}, machine=device_name())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
