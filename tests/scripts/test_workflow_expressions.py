"""The part of GitHub's expression language that the workflows use, against its documentation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from workflow_expressions import evaluate, filled, holds

CONTEXT: dict[str, Any] = {
    "github": {"event_name": "push", "event": {"pull_request": None}, "run_id": "7"},
    "inputs": {"forks": False, "install-to-judge": "", "install": "pip"},
    "needs": {"verify": {"result": "failure"}},
    "always": lambda: True,
    "success": lambda: False,
    "fromJSON": json.loads,
    "format": lambda *parts: "-".join(parts),
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("github.event_name == 'PUSH'", True),
        ("github.event_name != 'push'", False),
        ("github.event.pull_request.head.repo", None),
        ("github.absent == ''", True),
        ("!github.event.pull_request", True),
        ("inputs.install-to-judge || inputs.install", "pip"),
        ("inputs.forks || true && false", False),
        ("(inputs.forks || true) && 'it''s'", "it's"),
        ("true || inputs.forks && false", True),
        ("!inputs.forks && needs.verify.result == 'failure'", True),
        ("format('a', github.run_id)", "a-7"),
        ("fromJSON('[1, 2]')", [1, 2]),
    ],
)
def test_values(expression: str, value: Any) -> None:
    assert evaluate(expression, CONTEXT) == value


@pytest.mark.parametrize(
    "expression", ["secrets.TOKEN", "contains('a', 'b')", "1 < 2", "(true", "true true", "", "a.b"]
)
def test_what_is_not_known_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="a rehearsal does not know"):
        evaluate(expression, CONTEXT)


def test_a_text_that_is_one_expression_becomes_its_value_and_others_stay_texts() -> None:
    given = {"a": "${{ fromJSON('[1]') }}", "b": ["x ${{ inputs.forks }} ${{ github.absent }}.", 3]}
    assert filled(given, CONTEXT) == {"a": [1], "b": ["x false .", 3]}


@pytest.mark.parametrize(
    ("condition", "runs"),
    [(None, False), ("always()", True), ("true", False), ("${{ always() && true }}", True)],
)
def test_a_condition_that_asks_for_no_state_wants_success(condition: Any, runs: bool) -> None:
    assert holds(condition, CONTEXT) is runs
