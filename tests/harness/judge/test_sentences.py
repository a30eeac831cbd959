"""What people read: the whole sentence of every case's verdict, word for word, in `sentences/<kind>.yaml`."""

from pathlib import Path

import pytest
import yaml
from judge_cases import Case
from judge_cases_tables import EVERYTHING

SENTENCES: dict[str, dict[str, str]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((Path(__file__).parent / "sentences").glob("*.yaml"))
}
ALL = [pytest.param(kind, case, id=f"{kind}: {case.name}") for kind, cases in EVERYTHING.items() for case in cases]


@pytest.mark.parametrize(("kind", "case"), ALL)
def test_a_verdict_says_its_sentence(kind: str, case: Case) -> None:
    assert case.judged().message == SENTENCES[kind][case.name]


def test_every_sentence_belongs_to_a_case() -> None:
    written = sorted((kind, name) for kind, sentences in SENTENCES.items() for name in sentences)
    assert written == sorted((kind, case.name) for kind, cases in EVERYTHING.items() for case in cases)
