"""Hold what rows of several families share: reasons for which a kind leaves a shared check out, and evidence faults."""

from __future__ import annotations

MISSING_RUN = "harness.drill.evidence_faults:MISSING_RUN"
NO_STEPS = "harness.drill.evidence_faults:NO_STEPS"
NO_GUARDS = "Its model has no `guards`."
ONE_ARM = "It judges one execution, and compares it with nothing."
OLDER = {"watched.older": "Its probe did not watch single steps before November 28, 2026."}
FIRST_LOSS = "A control may store frozen tensors in another format; its first loss is the candidate's."
STILL = "A control is not trained, so that its end says nothing."
HALF = {
    "equal_start.half": "The second half begins anew, and what it loads is compared with what was saved.",
    "equal_state.half": "The second half begins anew, and what it loads is compared with what was saved.",
    "equal_ends.half": "The first half ends with what was saved, which is compared with what was loaded.",
}
CONTROL = {"equal_frozen.control": FIRST_LOSS, "equal_ends.control": STILL}
ALONE = dict.fromkeys(("comparable", "equal_start", "equal_frozen", "equal_state", "equal_ends"), ONE_ARM)
