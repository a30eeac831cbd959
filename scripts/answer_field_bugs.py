"""Say of each entry that is named on standard input what the claims say of a form of it: a line of JSON for each line.

    python scripts/answer_field_bugs.py        # then lines of: [drill] PATH FORM [CLAIM ...], or example NAME

For tests: one process imports torch, and each run is a fork of it. Without claims, all but the long run are tried. Of
a line that begins with `drill`: what did not hold without a fault, and each fault that was planted, with its row.
"""

from __future__ import annotations

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
        return [vars(each) for each in try_form(Path(path), form, seed=0, claims=claims)]
    _, path, form, *claims = words
    found = drill_form(Path(path), form, claims)
    return [{"not_held": found.not_held}, *map(vars, found.planted)]


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
