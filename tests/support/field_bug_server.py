"""Try forms of museum entries, with the results of their claims, in forks of one process for all tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import field_bugs
from field_bug_results import Said, read_results
from field_bugs import LONG, ROOT

SCRIPT = Path(__file__).with_name("answer_field_bugs.py")
Ask = Callable[..., list[Said]]
Drill = Callable[[Path, str], tuple[list[str], list[dict[str, Any]]]]


class Server:
    """A process that has imported torch and answers each line with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._back = process.stdin, process.stdout

    def ask(self, entry: Path, form: str, *claims: str) -> list[Said]:
        """Return the verdicts of the given claims, or of all claims except the long run, on a form of an entry."""
        return [Said(**each) for each in self._answer(entry, form, *claims)]

    def example(self, name: str) -> list[Said]:
        """Return the verdicts of the contract templates on a shipped example."""
        return [Said(**each) for each in self._answer("example", name)]

    def drill(self, entry: Path, form: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the claims that failed without a fault, and each planted fault with its result."""
        first, *planted = self._answer("drill", entry, form)
        return first["not_held"], planted

    def end(self) -> None:
        self._to.close()

    def _answer(self, *words: object) -> list[dict[str, Any]]:
        self._to.write(" ".join(map(str, words)) + "\n")
        self._to.flush()
        answer = json.loads(self._back.readline())
        assert isinstance(answer, list), answer
        return answer


@contextmanager
def server() -> Iterator[Server]:
    """Yield a server that ends with the context."""
    command = [sys.executable, str(SCRIPT)]
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(Path(field_bugs.__file__).parent)}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment) as process:
        opened = Server(process)
        yield opened
        opened.end()


def assert_recorded(entry: Path, form: str, ask: Ask) -> None:
    """Assert that every claim recorded for an entry, except the long run, gives the recorded result for a form."""
    recorded = [each for each in field_bugs.record_of(entry.stem, read_results())[0][form] if each.claim != LONG]
    tried = [each.claim for each in recorded if each.status != "NOT_RUN"]
    said = {each.claim: each for each in ask(entry, form, *tried)}
    found = [(each.claim, each.status, each.reason) for each in said.values()]
    assert found == [(each.claim, each.status, each.reason) for each in recorded if each.status != "NOT_RUN"], said
