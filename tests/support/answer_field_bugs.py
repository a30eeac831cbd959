"""Try forms of museum entries that standard input names, and print the results of their claims as lines of JSON.

A line of input is `[drill] PATH FORM [CLAIM ...]` or `example NAME`.

For tests. One process imports torch, and each run is a fork. Other slow imports that entries need are done once, in a
branch: a fork that answers for all entries with this need. A package release that an entry needs is imported by the
entry's runs alone, in a branch without another release of the package.

Without claims, all but the long run are tried. A FORM may end with a number of steps that replaces the templates'
(`buggy:8`). For a `drill` line, the answer has the claims that failed without a fault, and each planted fault.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from pathlib import Path

import forked_runs
from correct_trainers import try_example
from field_bugs import STEPS
from verify_field_bugs import drill_form, try_form

from examples.field_bugs.bug import bug_of

# Each fork imported it anew, for 3 s.
LIBRARY = "transformers"
# What torch imports when it compiles first, for 1 s.
COMPILES, COMPILER = "torch.compile", "torch._inductor.compile_fx"
# What releases that entries bring import of others, for 1 to 3 s: nothing that is a release of an entry's itself.
OF_RELEASES = {
    "liger-kernel": ("peft",),
    "pytorch-lightning": ("torchmetrics",),
    "pytorch-optimizer": (f"{LIBRARY}.modeling_utils",),
    LIBRARY: (COMPILER,),
}


class Branch:
    """A fork that answers line by line until this process closes its end of the pipe."""

    def __init__(self) -> None:
        theirs, self._to = os.pipe()
        self._back, ours = os.pipe()
        self._fork = forked_runs.Fork(lambda: self._serve(theirs, ours))
        os.close(theirs)
        os.close(ours)
        self._answers = os.fdopen(self._back, encoding="utf-8")

    def ask(self, line: str) -> str:
        os.write(self._to, line.encode())
        return self._answers.readline()

    def end(self) -> None:
        os.close(self._to)
        self._fork.wait()

    def _serve(self, lines: int, answers: int) -> None:
        os.close(self._to)
        os.close(self._back)
        with os.fdopen(lines, encoding="utf-8") as asked, os.fdopen(answers, "w", encoding="utf-8") as given:
            for line in asked:
                print(_answer(line), file=given, flush=True)


def _answer(line: str) -> str:
    try:
        return json.dumps(answered(*line.split()))
    except Exception as error:  # the test that asked shows it
        return json.dumps(f"{type(error).__name__}: {error}")


def answered(*words: str) -> list[dict[str, object]]:
    """Return the answer to one line."""
    if words[0] == "example":
        return [vars(each) for each in try_example(words[1])]
    if words[0] != "drill":
        path, form, *claims = words
        name, _, steps = form.partition(":")
        import_all(needed_by(Path(path)))
        return [vars(each) for each in try_form(Path(path), name, seed=0, claims=claims, steps=int(steps or STEPS))]
    _, path, form, *claims = words
    found = drill_form(Path(path), form, claims)
    return [{"not_held": found.not_held}, *map(vars, found.planted)]


def needed_by(entry: Path) -> list[str]:
    """Return the slow imports, `module[:name]`, that the entry's functions need directly or indirectly.

    The library that is installed for tests is included only if the entry needs no releases, because one may be its own.
    """
    text, brought = entry.read_text(encoding="utf-8"), _brought_by(entry)
    needed = [COMPILER] if COMPILES in text else []
    for package in sorted(brought & OF_RELEASES.keys()):
        needed += OF_RELEASES[package]
    for node in ast.walk(ast.parse(text)) if LIBRARY in text and not brought else ():
        if isinstance(node, ast.ImportFrom) and node.module == LIBRARY:
            needed += [f"{LIBRARY}:{alias.name}" for alias in node.names]
    return needed


def _brought_by(entry: Path) -> set[str]:
    bug = bug_of(entry)
    forms = bug.installed.values() if bug else ()
    return {release.partition("==")[0] for releases in forms for release in releases}


def import_all(needed: list[str]) -> None:
    """Import these modules in this process, before it forks."""
    known = len(sys.modules)
    for each in needed:
        name, _, attribute = each.partition(":")
        module = importlib.import_module(name)
        if attribute:
            getattr(module, attribute)  # its modules are imported as their names are asked for
    if len(sys.modules) > known:
        forked_runs.settle()


def branch_of(line: str) -> str:
    """Return the name of the branch that answers the line; "" if the entry needs torch alone."""
    words = line.split()
    needed = needed_by(Path(words[0])) if words[0] not in ("example", "drill") else []
    return COMPILER if set(needed) == {COMPILER} else LIBRARY if needed else ""


def main() -> None:
    forked_runs.prepare()
    branches: dict[str, Branch] = {}
    for line in sys.stdin:
        name = branch_of(line)
        if not name:
            print(_answer(line), flush=True)
            continue
        if name not in branches:
            branches[name] = Branch()
        print(branches[name].ask(line), end="", flush=True)
    for branch in reversed(branches.values()):  # a later one holds the ends of those before it, too
        branch.end()


if __name__ == "__main__":
    main()
