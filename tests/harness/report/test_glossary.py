"""The glossary explains every word in a figure's name that is not everyday English, whichever judge emits it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_cases_tables import EVERYTHING
from syntax_trees import parsed

import harness
from harness.kinds import BUILT_IN
from harness.report.text import words
from harness.report.wording import glossary, terms_in

# Words that a reviewer of training code reads without help; all others in a figure's name need an entry.
PLAIN = frozenset(
    re.findall(
        r"\w+",
        """a active after at attempts batches beyond bound bytes case cases changed compiled core demanded
        device differing distinct driver end equal error events every fastest files final first free gradient
        gradients groups high in largest late layer layers least load loss losses low max median mismatched
        missing most ms multiple norm norms not observed of operations over own parameters per planned quantity
        ratio relative repeating rows run runs samples showing something spread start status step steps tensor
        tensors the threshold timed used value version vs within""",
    )
)
# Words of contracts, commands and documentation that are no part of a figure's name.
VOCABULARY = frozenset(
    """accepted baseline|adapter|arm|claim|contract|demand|denominator|digest|drill|end state|evidence
    |faults killed|followed number|followed step|gate|gpu-bound|guard|host sync|judge|killed|kind of claim
    |launch-bound|loose tensor|manifest|naive twin|nat|plain step|planted fault|prewarm|probe|reason code|recording
    |run directory|settled|shard|split gate|system under test|unit|upstream project|vacuous|verdict|waived|waiver
    |worker|workload""".replace("\n    ", "").split("|")
)
TAILS = re.compile(r"^(?:nodes|over_peer|kernels|untimed_helper_share)\.|\.(?:float|bfloat|int)\d+\w*$|\.process_\d+$")
KINDS = re.compile(rf"^(?:(?:{'|'.join(BUILT_IN)})(?:\.\d+)?|measurement_\d+)\.")


@functools.cache  # it takes a second to judge them all
def emitted() -> frozenset[str]:
    """Names of figures and denominators, without their parts: of every judge's cases, and as the judges write them."""
    verdicts = [case.judged() for cases in EVERYTHING.values() for case in cases]
    names = {name for verdict in verdicts for name in (*verdict.figures, *verdict.denominators)} | set(written())
    return frozenset(KINDS.sub("", name) for name in names)


def written() -> Iterator[str]:
    """The names in the judges' sources, also of figures that no case has; what is filled in is left out."""
    folders = [Path(harness.__path__[0]) / name for name in ("judging", "kinds")]
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for call in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in {"sheet.figure", "sheet.count", "sheet.meets"}:
                parts = call.args[0].values if isinstance(call.args[0], ast.JoinedStr) else [call.args[0]]
                literals = [part.value for part in parts if isinstance(part, ast.Constant)]
                yield "".join(str(literal) for literal in literals).strip("._")


def unknown_words(name: str) -> set[str]:
    """The words of a name that neither the glossary nor everyday English explains."""
    kept = name.partition(".")[0] if TAILS.search(name) else name.replace(".", " ")
    left = words(kept)
    for term in terms_in([left]):
        left = re.sub(rf"(?<![a-z0-9]){term}(?:s|es)?(?![a-z])", " ", left)
    return set(left.split()) - PLAIN


@pytest.mark.slow
def test_every_word_of_a_figure_name_is_explained() -> None:
    names = emitted()
    assert {"missed_bias", "log_ratio_deviation", "noise_floor", "state_tensors"} <= names
    assert {name: unknown for name in sorted(names) if (unknown := unknown_words(name))} == {}


@pytest.mark.parametrize("term", glossary())
def test_an_explanation_in_the_glossary_is_one_sentence(term: str) -> None:
    assert term == term.lower()
    assert re.fullmatch(r"[A-Z][^\n]*[A-Za-z0-9%]\.", glossary()[term])
    assert len(glossary()[term]) <= 160


def test_every_glossary_entry_is_used_by_a_figure() -> None:
    """Otherwise the entry of a removed figure would remain in the glossary."""
    assert set(glossary()) - set(terms_in(map(words, emitted()))) - VOCABULARY == set()


@pytest.mark.parametrize(
    ("texts", "terms"),
    [
        (["missed_bias"], ["missed bias"]),
        (["2 host syncs a step"], ["host sync"]),
        (["exp_avg_sq_error_over_bound", "exp_avg_error"], ["error over bound", "exp avg", "exp avg sq"]),
        (["sm_clock.candidate"], ["candidate", "sm clock"]),
        (["kernels.sm_90a"], ["kernel", "sm"]),
        (["the charm of the armistice"], []),
    ],
)
def test_glossary_terms_are_found_in_names_of_figures_and_in_sentences(texts: list[str], terms: list[str]) -> None:
    assert list(terms_in(texts)) == terms
