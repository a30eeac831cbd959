"""How each command is used: what stands below its help."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "verify": (
        ("contracts/", "run all, judge, write a report"),
        ("contracts/ --gate", "fail unless all of it was decided and held"),
        ("contracts/ --claim F-GRAPH-BWD-001", "one claim"),
        ("as-main.yaml --baseline main", "the working tree against another commit"),
    ),
    "check": (("contracts/", "errors and warnings, with file and line"),),
    "judge": (
        ("reports/RUN", "the verdicts again, without a GPU"),
        ("reports/RUN --check", "whether they are those that were recorded"),
        ("PART-1 PART-2 --gate", "the parts of one gate together"),
        ("PART-1 PART-2 --gate --out FOLDER", "and one page of them all"),
    ),
    "report": (
        ("harness-reports/RUN", "draw the pages again"),
        ("RUN OTHER-RUN --out FOLDER", "one page of several runs"),
    ),
    "explain": (("F-GRAPH-BWD-001", "what it demands, and what usually breaks it"),),
    "drill": (
        ("contracts/", "plant every fault that a claim names"),
        ("contracts/ --claim F-GRAPH-BWD-001 --fault stale_batch", "one of them"),
    ),
    "doctor": (("contracts/", "what this machine can decide, and what is missing"),),
    "compare": (("RUN LATER-RUN", "verdicts and figures that changed"),),
    "history": (("reports/", "every judged figure over many runs, as a page"),),
    "pack": (("harness-reports/RUN --redact --out reports/RUN", "to publish it, without names"),),
    "attest": (("reports/RUN --key private.pem", "sign its verdicts"),),
    "import": (("upstream/ --write mine.yaml", "contracts of another language as one of ours"),),
    "schema": (("> contract.schema.json", "for an editor"),),
    "init": (("train.py:make_step", "an adapter and a contract, by what a trial measured"),),
    "try": (
        ("train.py:make_step", "does it capture, train the same, how fast"),
        ("train.py:make_step --write-contract", "and keep that as a contract"),
    ),
}


def epilog(name: str) -> str:
    """The examples of a command, a line each; the first line keeps click from joining them."""
    width = max(len(arguments) for arguments, _ in EXAMPLES[name])
    lines = [f"  harness {name} {arguments:<{width}}  {what}" for arguments, what in EXAMPLES[name]]
    return "\n".join(["\b", "Examples:", *lines])
