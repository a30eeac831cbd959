"""List which keys of a foreign contract hold claims, and which hold none, with the reason: at any depth of the file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClaimSection:
    """A key below which claims stand. `of_mappings`: each is a mapping with an id; a bare number or text is an error.

    unchecked: why an item of it has no executable check where no form fits it (`forms.py`).
    """

    unchecked: str
    of_mappings: bool = False


_NO_FORM = "its words are in no form that a claim kind can judge"
_SENTENCE = "a sentence beside a formula, in no form that a claim kind can judge"
_NAMES = "names a check of upstream's own, and demands nothing itself"
_PROGRAM = "about upstream's program, not about a run"

CLAIM_SECTIONS: dict[str, ClaimSection] = {
    "falsification_tests": ClaimSection(_NO_FORM, of_mappings=True),
    "proof_obligations": ClaimSection(_NO_FORM, of_mappings=True),
    "falsification": ClaimSection(_NO_FORM),  # a list of tests, or within a gate what would break it
    "obligations": ClaimSection(_NO_FORM),
    "validation_rules": ClaimSection(_NO_FORM),
    "upper_bounds": ClaimSection(_NO_FORM),
    "lower_bounds": ClaimSection(_NO_FORM),
    "invariants": ClaimSection(_SENTENCE),
    "preconditions": ClaimSection("a condition on the inputs of upstream's functions"),
    "postconditions": ClaimSection(_SENTENCE),
    "kani_harnesses": ClaimSection(
        "a bounded proof about upstream's Rust functions; what it proves is another item", of_mappings=True
    ),
    "phases": ClaimSection("a stage of upstream's kernel, with what holds between stages"),
    "enforcement": ClaimSection("names the test that enforces another item"),
    "checks": ClaimSection(_NAMES),
    "required_tests": ClaimSection(_NAMES),
    "pass_criteria": ClaimSection("counts upstream's own tests and proofs"),
    "min_coverage": ClaimSection(_PROGRAM),
    "max_complexity": ClaimSection(_PROGRAM),
    "layer_steps": ClaimSection("a bound on one step of a layer in upstream's own backends"),
    "parity_gate": ClaimSection("a gate inside upstream's program"),
    "metrics": ClaimSection("a threshold of a tool of upstream's"),
    "ci_integration": ClaimSection("says what upstream's CI does"),
}

NOT_NAMED = "no known form of a contract names this key"

# Keys that hold parts of a known form; the names directly below `equations` are free.
CONTAINERS = frozenset({"equations", "qa_gate", "kernel_structure", "parity_tool", "spc_tool"})
FREE_NAMES = frozenset({"equations"})

# What is left out with a reason; a claim section below such a key is read all the same.
# Below a key that no form names these are no better known than their neighbours.
NO_CLAIM: dict[str, str] = {
    **dict.fromkeys(
        ("metadata", "kind", "name", "version", "scope", "description", "title", "id", "schema"),
        "says what the file, gate or equation is called and where it comes from",
    ),
    **dict.fromkeys(
        ("formula", "formula_alt", "domain", "codomain", "constants"), "defines the terms that claims are made of"
    ),
    "lean_theorem": "names a proof of upstream's",
    **dict.fromkeys(("simd_dispatch",), "names upstream's functions"),
    "verification_summary": "counts upstream's own tests and proofs",
    **dict.fromkeys(("implementation_requirements", "implementation"), "says what upstream means to build"),
    **dict.fromkeys(("command", "output_format"), "says how a tool of upstream's is called and what it prints"),
}

# What names a claim, in order of preference; a mapping with one of these keys is one claim, not a list of them.
TITLE_KEYS = ("rule", "property", "claim", "description", "invariant", "metric", "name", "formal", "formula")
