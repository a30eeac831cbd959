"""Say of each entry that is named on standard input what the claims say of a form of it: a line of JSON for each line.

    python scripts/answer_field_bugs.py        # then lines of: [drill] PATH FORM [CLAIM ...], or example NAME

For tests: one process imports torch and what entries import of transformers, and each run is a fork of it. Without
claims, all but the long run are tried. Of a line that begins with `drill`: what did not hold without a fault, and each
fault that was planted, with its row.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import field_bugs
import forked_runs
from correct_trainers import try_example
from verify_field_bugs import drill_form, try_form


def answered(*words: str) -> list[dict[str, object]]:
    """What is said of one line."""
    if words[0] == "example":
        return [vars(each) for each in try_example(words[1])]
    if words[0] != "drill":
        path, form, *claims = words
        import_ahead(Path(path))
        return [vars(each) for each in try_form(Path(path), form, seed=0, claims=claims)]
    _, path, form, *claims = words
    found = drill_form(Path(path), form, claims)
    return [{"not_held": found.not_held}, *map(vars, found.planted)]


# Each fork imported it anew, for 3 s. Libraries of releases that an entry needs are not the ones installed for tests.
LIBRARY = "transformers"
# What torch imports when it compiles first, for 1 s.
COMPILES, COMPILER = "torch.compile", "torch._inductor.compile_fx"


def import_ahead(entry: Path) -> None:
    """Import here, before any fork, what the entry imports of `LIBRARY` in any of its functions, of no release; and
    the compiler for one that compiles.
    """
    from examples.field_bugs import packages  # its folder is on the path by now

    facts = entry.with_suffix(".toml")
    if facts.is_file() and any(packages.installed_for(facts).values()):
        return
    known, text = len(sys.modules), entry.read_text(encoding="utf-8")
    if COMPILES in text:
        importlib.import_module(COMPILER)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == LIBRARY:
            module = importlib.import_module(LIBRARY)
            for alias in node.names:
                getattr(module, alias.name)  # its modules are imported as their names are asked for
    if len(sys.modules) > known:
        forked_runs.settle()


def main() -> None:
    sys.path.insert(0, str(field_bugs.ROOT))
    forked_runs.prepare()
    for line in sys.stdin:
        try:
            answer = json.dumps(answered(*line.split()))
        except Exception as error:  # the test that asked shows it
            answer = json.dumps(f"{type(error).__name__}: {error}")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
