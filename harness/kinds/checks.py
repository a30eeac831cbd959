"""Name the checks that several kinds of claim share, and the reasons why a kind leaves out some of these checks."""

from __future__ import annotations

from collections.abc import Mapping

SHARED_CHECKS: Mapping[str, str] = {
    "captured": "An arm that must replay a capture replayed it in every step.",
    "uncaptured": "An arm that is declared uncaptured, and is compared with a captured one, captured nothing.",
    "watched": "Each replayed step was watched, and the device did only the captured work in it.",
    "finite": "No loss is NaN or infinite.",
    "comparable": "All arms made the same number of steps, on the same batches.",
    "equal_start": "All arms start from equal trainable parameters.",
    "equal_frozen": "All arms start from equal frozen parameters.",
    "equal_state": "All arms start from equal buffers, generators and other state.",
    "guards": "The claim's guards hold: distinct batches, an active clip, a training effect compared with a control.",
    "trained": "Trainable parameters changed, frozen ones did not, the loss changed, and no update was skipped.",
    "finite_end": "No tensor ended NaN or infinite.",
    "equal_ends": "Where a claim demands equal bits, all arms end with equal state.",
    "recorded": "The state at the start and at the end was recorded.",
    "enough_steps": "As many steps were run as the claim and its workload demand.",
}

# The roles of an execution. A kind may leave out a check for one role. `repetition`: the baseline's second execution,
# which shows the baseline's noise. `half`: a part of a training that was interrupted by a save and a load. `older`: an
# execution recorded when its probe did not watch single steps yet. The other roles are named after fields of claims.
ROLES = frozenset({"control", "half", "older", "peer", "plain", "reference", "repetition", "yardstick"})


def names_of(check: str, role: str) -> frozenset[str]:
    """Return three names: the check, the role, and `check.role`. If one of them is a key in a row's `leaves_out`, the
    check is left out for an execution in this role."""
    return frozenset({check, role, f"{check}.{role}"})


def left_out(name: str) -> str:
    """Return `name` if it names a check, a role, or both (`trained.control`). Otherwise raise ValueError."""
    check, _, role = name.partition(".")
    if name not in ROLES and not (check in SHARED_CHECKS and (not role or role in ROLES)):
        raise ValueError(f"no shared check or role is named '{name}'; see harness/kinds/checks.py for the names")
    return name


# Constants that the rows of several kinds use: names of faults that a drill plants in evidence, and reasons why a kind
# leaves out a shared check.

MISSING_RUN = "harness.drill.faults:MISSING_RUN"
NO_STEPS = "harness.drill.faults:NO_STEPS"
NO_GUARDS = "The kind's model has no `guards`."
ONE_ARM = "The kind judges one execution and compares it with no other execution."
OLDER = {"watched.older": "The kind's probe did not watch single steps before November 28, 2026."}
FIRST_LOSS = "A control may store frozen tensors in another format; its first loss is compared with the candidate's."
STILL = "A control is not trained, so its end shows nothing."
HALF = {
    "equal_start.half": "The second half starts from a new model, and the loaded state is compared with the saved "
    "state.",
    "equal_state.half": "The second half starts from a new model, and the loaded state is compared with the saved "
    "state.",
    "equal_ends.half": "The first half ends with the saved state, which is compared with the loaded state.",
}
CONTROL = {"equal_frozen.control": FIRST_LOSS, "equal_ends.control": STILL}
ALONE = dict.fromkeys(("comparable", "equal_start", "equal_frozen", "equal_state", "equal_ends"), ONE_ARM)
