"""Each example: a script that runs alone, an adapter of at most 30 lines on it, and what a short run shows.

Whole contracts, torch.compile's among them, run in `.ci/long examples`; the page's table is of published runs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import forks
import pytest
from budget import slow_but
from claims_in_process import executed
from needed_programs import absent
from planning import NO_GPU

from harness.contract.load import load_contract
from harness.contract.schema import Contract
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.planning.plan import plan
from harness.system.resolve import resolve
from harness.system.wrappers import HARNESS_FAULTS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/train.py"))
NAMES = [path.name for path in EXAMPLES]
RANKS = sorted(
    path.parent for path in (ROOT / "examples").glob("ranks/*/contract.yaml")
)  # each of one rank where it is alone
STEPS = 12
# Below these a script has trained: untrained losses are ln 10, about 4, 1, and ln 256 to ln 259; of ranks ln 8, ln 32.
TRAINED_LOSS = {
    "accelerate_loop": 1.5,
    "compiled_model": 1.0,
    "ddp_loop": 1.0,
    "fsdp2": 1.0,
    "lightning_module": 0.5,
    "peft_lora": 4.0,
    "plain_loop": 5.0,
    "transformers_trainer": 5.0,
    "trl_sft": 5.0,
}
# What 12 steps of each unit show on a machine without a GPU: its status and its reason.
EXPECTED = {
    "accelerate_loop": {
        "ACCELERATE-TRAJECTORY": ("PASS", "held"),
        "ACCELERATE-TRAJECTORY-AS-WRITTEN": ("PASS", "held"),  # its beta1 has hardly moved in 12 steps
        "ACCELERATE-CAPTURE": ("PASS", "held"),
    },
    "lightning_module": {
        "LIGHTNING-STEPS": ("PASS", "held"),
        "LIGHTNING-TRAJECTORY": ("PASS", "held"),
        "LIGHTNING-CAPTURE": ("PASS", "held"),
        "LIGHTNING-CAPTURE-AS-WRITTEN": ("FAIL", "not_captured"),
    },
    "peft_lora": {"PEFT-TRAJECTORY": ("PASS", "held"), "PEFT-CAPTURE": ("PASS", "held")},
    "plain_loop": {
        "PLAIN-TRAJECTORY": ("PASS", "held"),
        "PLAIN-BITS": ("PASS", "held"),
        "PLAIN-CAPTURE": ("PASS", "held"),
        "PLAIN-CAPTURE-AS-WRITTEN": ("FAIL", "not_captured"),
    },
    "transformers_trainer": {
        "TRAINER-STEPS": ("PASS", "held"),
        "TRAINER-TRAJECTORY": ("PASS", "held"),
        "TRAINER-CAPTURE": ("PASS", "held"),
        "TRAINER-CAPTURE-AS-WRITTEN": ("FAIL", "not_captured"),
    },
    "trl_sft": {
        "SFT-STEPS": ("PASS", "held"),
        "SFT-TRAJECTORY": ("INCONCLUSIVE", "candidate_not_captured"),
        "SFT-CAPTURE": ("FAIL", "not_captured"),
        "SFT-CAPTURE-AS-WRITTEN": ("FAIL", "not_captured"),
    },
}
# The source lines that the verdicts name, by what stands there: line numbers are a release's own.
NAMED = {
    "PLAIN-CAPTURE-AS-WRITTEN": ["log.append(loss.item())"],
    "TRAINER-CAPTURE-AS-WRITTEN": ["torch.isnan(tr_loss_step)", "packed_sequence_mask[:, -1] == 0", ".mean().item()"],
    "LIGHTNING-CAPTURE-AS-WRITTEN": ["return value.item()"],
    "SFT-CAPTURE": ["(entropy_sum / num_valid).item()"],
    "SFT-CAPTURE-AS-WRITTEN": ["(num_correct / num_valid).item()", "torch.isnan(tr_loss_step)"],
}


def require_modules(contract: Contract) -> None:
    """Skip where an example's libraries are missing; fail where `REQUIRE_TOOLS` is set."""
    needed = {module for workload in contract.workloads.values() for module in workload.needs.modules}
    missing = sorted(module for module in needed if importlib.util.find_spec(module) is None)
    if missing:
        absent(f"the extra `examples` ({', '.join(missing)})")


def contract_of(name: str) -> Contract:
    return load_contract(ROOT / "examples" / name / "contract.yaml").contract


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each script prints, run in a fork of this process that cannot import the harness."""
    for name in NAMES:
        require_modules(contract_of(name))
    folder = tmp_path_factory.mktemp("alone")
    for path in [*EXAMPLES, *RANKS]:
        _import_ahead(path / "train.py")
    ended = forks.end(forks.begin(lambda: _run_alone(folder)))
    found = {path.name: folder / f"{path.name}.txt" for path in [*EXAMPLES, *RANKS]}
    printed = {name: file.read_text() for name, file in found.items() if file.exists()}
    assert ended == 0, [*printed.values()][-1:]
    return printed


def _import_ahead(script: Path) -> None:
    """Here, where the adapters' runs need it, too: a process of its own imported all of it anew."""
    with warnings.catch_warnings(action="ignore"):
        for node in ast.walk(ast.parse(script.read_text())):
            named = node.names if isinstance(node, ast.Import) else []
            for name in [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in named]:
                importlib.import_module(name or "")


def _run_alone(folder: Path) -> None:
    """In the fork: each script, with what it prints in a file of its name."""
    os.chdir(folder)
    for module in [*sys.modules]:
        if module.partition(".")[0] in ("harness", "examples"):
            del sys.modules[module]
    sys.modules["harness"] = None  # type: ignore[assignment]  # importing it raises
    warnings.simplefilter("ignore")
    for path in [*EXAMPLES, *RANKS]:
        sys.argv = [str(path / "train.py")]
        with (folder / f"{path.name}.txt").open("w") as file, redirect_stdout(file), redirect_stderr(file):
            try:
                runpy.run_path(sys.argv[0], run_name="__main__")
            except BaseException:
                traceback.print_exc()
                raise


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED_LOSS)
def test_each_example_script_trains_without_the_harness(name: str, printed: dict[str, str]) -> None:
    losses = [float(loss) for loss in re.findall(r"\bloss'?:? '?([0-9.]+)", printed[name])]
    assert losses[-1] < TRAINED_LOSS[name]


def test_every_example_script_has_an_expected_trained_loss() -> None:
    assert sorted(TRAINED_LOSS) == sorted(path.name for path in [*EXAMPLES, *RANKS])


@pytest.mark.parametrize("name", NAMES)
def test_the_adapter_is_at_most_30_lines_and_the_script_30_to_80(name: str) -> None:
    lines = {
        file: len((ROOT / "examples" / name / file).read_text().splitlines()) for file in ("adapter.py", "train.py")
    }
    assert lines["adapter.py"] <= 30
    assert 30 <= lines["train.py"] <= 80


@dataclass(frozen=True)
class _Loaded:
    contract: Contract


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Verdict]]:
    """Verdicts of a short run in this process, by claim; each example is run once."""
    known: dict[str, dict[str, Verdict]] = {}

    def of(name: str) -> dict[str, Verdict]:
        if name not in known:
            known[name] = _judged(name, tmp_path_factory.mktemp(name))
        return known[name]

    return of


def _judged(name: str, folder: Path) -> dict[str, Verdict]:
    require_modules(contract_of(name))
    text = (ROOT / "examples" / name / "contract.yaml").read_text()
    text = re.sub(r"\n +training_effect: .*", "", re.sub(r"(steps|distinct_batches): 40", rf"\1: {STEPS}", text))
    (folder / "contract.yaml").write_text(text)
    contract = load_contract(folder / "contract.yaml").contract
    planned = plan(
        [_Loaded(contract)],
        workloads=["small"],
        machine=NO_GPU,
        describe=lambda system: resolve(system).describe(),
        harness_faults=HARNESS_FAULTS,
    )
    evidence = [executed(run, folder / run.id) for run in planned.runs]
    claims = {claim.id: claim for claim in contract.claims}
    return {
        unit.claim: judge_unit(contract, claims[unit.claim], unit.workload, evidence, unit.obstacle)
        for unit in planned.units
    }


@pytest.mark.filterwarnings("ignore")  # libraries warn of what their users may do
@pytest.mark.parametrize("name", slow_but(["plain_loop"], sorted(EXPECTED)))
def test_a_short_run_of_each_example_gives_the_documented_verdicts(
    name: str, verdicts: Callable[[str], dict[str, Verdict]]
) -> None:
    assert {claim: (each.status, each.reason) for claim, each in verdicts(name).items()} == EXPECTED[name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("claim", slow_but(["PLAIN-CAPTURE-AS-WRITTEN"], sorted(NAMED)))
def test_a_step_that_cannot_be_captured_is_named_with_the_line_that_prevents_the_capture(
    claim: str, verdicts: Callable[[str], dict[str, Verdict]]
) -> None:
    [name] = [name for name, claims in EXPECTED.items() if claim in claims]
    named = {  # a statement may begin some lines above what it reads
        "".join(Path(entry).joinpath(file).read_text().splitlines()[int(line) - 1 : int(line) + 3])
        for file, line in re.findall(r"([\w/.]+\.py):(\d+)", verdicts(name)[claim].message)
        for entry in [*sys.path, str(ROOT)]
        if entry and Path(entry).joinpath(file).is_file()
    }
    missing = [code for code in NAMED[claim] if not any(code in line for line in named)]
    assert not missing, f"{missing} not among {named} of {verdicts(name)[claim].message}"
