"""List the kinds of claim about single steps against a reference, and the report's sections about them."""

from __future__ import annotations

from harness.kinds.checks import MISSING_RUN, NO_GUARDS, NO_STEPS, OLDER
from harness.kinds.kind import Kind

_REFERENCE = "The reference computes in another precision, so equal values have different digests."
_FOLLOWS = "A reference makes each step from the candidate's state, and trains nothing by itself."
_PARAMETERS_ALONE = "Published runs contain only the parameters of a peer and a reference."
_NOT_WATCHED = "The kind's probe does not watch single steps."

ROWS = (
    Kind(
        name="step_match",
        model="harness.kinds.steps.model:StepMatch",
        judge="harness.kinds.steps.step_match:judge",
        probes={"step_match": ("candidate", "reference", "yardstick")},
        capabilities=frozenset({"parameters", "inputs", "gradients", "gradient_norms"}),
        card=("steps",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "comparable.reference": _REFERENCE,
            "equal_start.reference": _REFERENCE,
            "equal_frozen": "The reference stores frozen tensors in another format.",
            "equal_state": "The reference gets the candidate's state before each step.",
            "equal_ends": "Each step is compared within a bound, and begins from the candidate's state.",
            "trained.reference": _FOLLOWS,
            "trained.yardstick": _FOLLOWS,
            **OLDER,
            "guards": NO_GUARDS,
        },
    ),
    Kind(
        name="step_accuracy",
        model="harness.kinds.steps.model:StepAccuracy",
        judge="harness.kinds.steps.step_accuracy:judge",
        probes={
            "step_accuracy": ("candidate", "peer", "reference", "gradient_seeds", "gradient_steps", "loss_seeds"),
        },
        capabilities=frozenset({"parameters", "inputs", "gradients"}),
        card=("step_accuracy",),
        evidence_faults=(MISSING_RUN, NO_STEPS),
        leaves_out={
            "captured": "The check is made if the candidate captures, but a test reads from published runs which "
            "checks are made, and no published run has such a candidate.",
            "uncaptured": "The arms are different implementations, and neither is the plain form of the candidate.",
            "watched": _NOT_WATCHED,
            "recorded.peer": _PARAMETERS_ALONE,
            "recorded.reference": _PARAMETERS_ALONE,
            "equal_frozen": "The arms store frozen tensors in different precisions.",
            "equal_state": "The arms are different implementations, so their buffers and generators differ.",
            "equal_ends": "Errors are compared and not bits.",
            "guards": NO_GUARDS,
        },
    ),
)
SECTIONS = ("harness.kinds.steps.section:match_section", "harness.kinds.steps.section:accuracy_section")
