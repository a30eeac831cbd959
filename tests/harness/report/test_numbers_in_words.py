"""Numbers in sentences are right: nouns agree with them, an estimate exceeds what was run, a size was stated."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_views as views
import yaml
from report_views import decided_by, small_view, verdict, view_with

from harness.contract.load import load_contracts
from harness.judging.sheet import Sheet
from harness.judging.verdict import Demanded, Figure, Status
from harness.numbers import agreed
from harness.report.advice import advice
from harness.report.first_screen import identity
from harness.report.headline import enough, remedy_of

WRITTEN = Path(__file__).parents[1] / "judging" / "sentences"
CONTRACTS = Path(__file__).parents[3] / "contracts"
SINGULAR = re.compile(r"(?<![\d.,] )(?<![\d.,])\b1 (?!(?:is|was|has|does|ends|differs|lies|times|ms)\b)[a-z-]+s\b")
# What begins with `1` and is no count: the number of a measurement or a rank, a list's entry.
NUMBERED = re.compile(r"\b(measurement|rank|step|process|round|block|block_|run|lane|output) 1 ")


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("1 captures of 44 nodes were replayed 1 times", "1 capture of 44 nodes was replayed once"),
        ("2 captures of 44 nodes were replayed 2 times", "2 captures of 44 nodes were replayed 2 times"),
        ("3 of 1 steps were seen", "3 of 1 step were seen"),
        ("0 of 1 steps differ, none may", "0 of 1 step differs, none may"),
        ("0 of 1 kernels do not fit; 1 of 1 steps leave them", "0 of 1 kernel does not fit; 1 of 1 step leaves them"),
        ("10 of 1 steps differ; the losses of 1 steps differ", "10 of 1 step differ; the losses of 1 step differ"),
        ("at step 1 losses differ", "at step 1 losses differ"),
        ("measurement 1 proves it; rank 1 rows", "measurement 1 proves it; rank 1 rows"),
        ("11 steps, 1,001 steps, 0.1 steps", "11 steps, 1,001 steps, 0.1 steps"),
        ("1 points of the grid were not tried", "1 point of the grid was not tried"),
        ("arm plain-1 waits; arm lora-1 reads, x=1 gives", "arm plain-1 waits; arm lora-1 reads, x=1 gives"),
        ("rank 0 was 1 times its own bound", "rank 0 was 1 times its own bound"),
        ('"expert 1 gets" and `1 steps` in 1 steps', '"expert 1 gets" and `1 steps` in 1 step'),
        ("a block of 1 steps, and 1 distinct batches were seen", "a block of 1 step, and 1 distinct batch was seen"),
    ],
)
def test_nouns_and_verbs_agree_with_their_number(given: str, right: str) -> None:
    assert agreed(given) == right


def test_sentences_of_judges_use_the_singular_for_the_number_one() -> None:
    sentences = [sentence for file in WRITTEN.glob("*.yaml") for sentence in yaml.safe_load(file.read_text()).values()]
    assert len(sentences) > 500
    wrong = [each for each in sentences if SINGULAR.search(NUMBERED.sub("", each))]
    assert wrong == []


def test_every_judge_message_agrees_with_its_numbers() -> None:
    assert Sheet().conclude("held", "1 captures were made").message == "1 capture was made"


def undecided(**changes: Any) -> str:
    figures = {"processes_to_decide": Figure(value=10, unit="processes")}
    figures |= {f"ratio.process_{place}": Figure(value=1.2, unit="x") for place in changes["counted"]}
    item = verdict("F-GRAPH-BWD-003", "qwen2-1.5b", Status.INCONCLUSIVE, figures=figures, reason="undecided_ratio")
    item = item.model_copy(update={"denominators": {"processes": 12}})
    view = view_with(item, contracts=[views.contract()])
    return str(remedy_of(item, replace(view, places=changes.get("places", {}))))


def test_the_process_estimate_accounts_for_processes_left_out() -> None:
    assert undecided(counted=range(9)).startswith(
        "about 14 processes would probably be enough, if as many are left out as now (3 of 12): "
    )
    assert undecided(counted=range(12)).startswith("about 13 processes would probably be enough: ")


def test_the_process_estimate_says_which_field_of_which_file_to_change_and_for_which_demand() -> None:
    """No option of a command sets the number, and the file may contain another demand by now."""
    seeds = {"figures": {"seeds_to_decide": Figure(value=30)}, "denominators": {"seeds": 8}}
    demanded = decided_by(Demanded("worse_by", 0.0144, "at most", 0.02, "loss"))
    item = verdict("FP8-001", "w", Status.INCONCLUSIVE, reason="undecided_difference", **seeds, **demanded)
    view = replace(view_with(item), places={(item.contract, "FP8-001"): ("contracts/fp8-v1.yaml", 153)})
    assert remedy_of(item, view) == (
        "about 30 seeds would probably be enough: change `seeds` of FP8-001 in contracts/fp8-v1.yaml, for the demand "
        "as judged, at most 0.02"
    )
    assert f"in contract {item.contract}, for" in str(remedy_of(item, view_with(item)))


@pytest.mark.parametrize("needed", range(1, 40))
def test_an_estimate_is_always_larger_than_the_number_already_run(needed: int) -> None:
    for run in range(1, 30):
        for counted in range(1, run + 1):
            number = int(re.findall(r"about (\d+)", enough(needed, "seeds", run, counted))[0])
            assert number > run
            assert number * counted >= needed * run or number == run + 1
    assert enough(None, "seeds", 8, 8) == "no number of seeds would be enough"


def test_no_contract_text_states_how_many_processes_or_seeds_would_decide() -> None:
    """The judge estimates this number from the runs. A number in a contract's text would contradict the estimate."""
    for loaded in load_contracts([CONTRACTS]):
        for claim in loaded.contract.claims:
            assert not re.search(r"\d+ (seeds|processes) would", claim.why), claim.id


@pytest.mark.parametrize(("ratio", "words"), [(0.84, "slower than the baseline's"), (1.05, "a small part of a step")])
def test_advice_on_a_slower_candidate_does_not_speak_of_too_little_gain(ratio: float, words: str) -> None:
    figures = {"generous_mean_ratio": Figure(value=ratio, unit="x")}
    item = verdict("F-GRAPH-BWD-003", "qwen2-1.5b", Status.FAIL, reason="too_slow", figures=figures)
    told = [each.text for each in advice(view_with(item, contracts=[views.contract()]), item)]
    assert any(words in text for text in told), told


def test_a_workload_without_a_stated_size_is_shown_without_a_size() -> None:
    shape = {"tiny": {"model": "make_step", "batch_size": 1, "seq_len": 1, "steps": 43}}
    contracts = [views.contract(workloads=views.CONTRACT["workloads"] | shape)]
    view = small_view(header=small_view().header, contracts=contracts)
    assert dict(identity(view))["Model, batch, length"] == "make_step, 43 steps (workload tiny)"
    whole = dict(identity(small_view(header=small_view().header)))
    assert "4 × 64 tokens" in whole["Model, batch, length"]
