"""Evidence is read as strictly as contracts are: what two readers could read differently is damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from recorded import end, read, start

from harness.evidence.files import Damaged, read_model
from harness.evidence.plan_records import Run
from harness.execution.recorder import Recorder

Change = Callable[[str], str]
CHANGES: dict[str, Change] = {
    "a key twice": lambda text: text.replace('"skipped_steps":', '"skipped_steps":7,"skipped_steps":'),
    "a text for a number": lambda text: text.replace('"steps_called":1', '"steps_called":"1"'),
    "a fraction for a count": lambda text: text.replace('"steps_called":1', '"steps_called":1.0'),
    "a name in two forms": lambda text: text.replace('"layers":2', '"caf\u00e9":2,"cafe\u0301":3'),
}


def recorded(directory: Path, *executions: int) -> Path:
    """Write what a worker records of these replicas of one arm, and return the file."""
    with Recorder(directory) as recorder:
        for replica in executions:
            recorder.write(start(replica=replica))
            recorder.write(end(replica=replica))
        recorder.complete()
    return directory / "records.jsonl"


def compact(text: str) -> str:
    return text.replace(": ", ":").replace(", ", ",")


@pytest.mark.parametrize("change", CHANGES)
def test_an_ambiguous_record_is_read_as_damage(directory: Path, change: str) -> None:
    path = recorded(directory, 0)
    text = compact(path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    assert read(directory).death is None
    changed = CHANGES[change](text)
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    death = read(directory).death
    assert death is not None
    assert death.cause == "garbage"


def test_a_decomposed_unicode_key_is_not_damage(directory: Path) -> None:
    path = recorded(directory, 0)
    path.write_text(compact(path.read_text()).replace('"layers":2', '"cafe\u0301":2'), encoding="utf-8")
    assert read(directory).death is None


def test_a_file_with_a_key_twice_is_damage(directory: Path) -> None:
    path = directory / "run.json"
    assert read_model(path, Run).process == 0
    path.write_text(path.read_text(encoding="utf-8").replace('"process"', '"process": 1, "process"'), encoding="utf-8")
    with pytest.raises(Damaged, match=r"run\.json: a key occurs twice in one object"):
        read_model(path, Run)
