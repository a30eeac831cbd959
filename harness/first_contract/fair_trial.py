"""Run a trial to its end: over as many steps as the step trains, by the strongest comparison that is fair."""

from __future__ import annotations

from collections.abc import Callable

from harness.first_contract.answers import not_tried
from harness.first_contract.choosing import chosen
from harness.first_contract.draft import Draft
from harness.first_contract.horizon import to_its_end
from harness.first_contract.trying import Tried

FIRST, SHORTER, CHOSEN = "first", "shorter", "chosen"


def fair_trial(
    draft: Draft,
    run: Callable[[Draft, str], Tried],
    probe: Callable[[Draft], Tried],
    compared: Callable[[Draft], None] = lambda _: None,
) -> tuple[Tried, Draft]:
    """Return the trial whose answers stand, and the draft with what was measured.

    run: tries a draft for its answers; FIRST, SHORTER or CHOSEN says which trial it is. probe: tries a draft for its
    measurements alone. compared: gets the chosen draft before it is tried.
    """
    tried = to_its_end(run(draft, FIRST), lambda shorter: run(shorter, SHORTER))
    if not_tried(tried):
        return tried, draft
    fair = chosen(tried, probe)
    compared(fair)
    is_tried = (fair.choice, fair.warm_steps) == (tried.draft.choice, tried.draft.warm_steps)
    return (tried if is_tried else run(fair, CHOSEN)), fair
