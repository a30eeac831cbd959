"""A run with hostile text in every field that can contain free text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from report_views import CONTRACT, contract, full_view, waiver

from harness.evidence import run_evidence
from harness.evidence.environment_records import Environment, GpuFacts
from harness.report.view import ReportView
from harness.run_directory.bundle import Digests, Header, Narrowed, WaiverRecord

HOSTILE = (
    '<script>alert(1)</script><img src=x onerror=alert(1)>"\'><b a="` ${{7*7}} $\\frac{1}{0}$ {{ x }} {% raw %} '
    "\x00\x07\x1b[31m\u202ereversed\u2066\ufffe ]]> --> &amp; %s %n \u0301\u0301"
)
# Values that the models restrict to a few words, and names that tie evidence to claims.
_FIXED = {
    "record",
    "mechanism",
    "per",
    "event",
    "detector",
    "cause",
    "probe",
    "status",
    "contract",
    "workload",
    "run_id",
}
_FIXED |= {"arm", "candidate", "baseline", "start", "runs"}


def poison(value: Any, text: str) -> Any:
    """Return the same structure with every free text replaced."""
    if isinstance(value, str):
        return text
    if isinstance(value, dict):
        return {key: item if key in _FIXED else poison(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item, text) for item in value]
    if hasattr(value, "model_copy"):
        fields = {name: getattr(value, name) for name in type(value).model_fields if name not in _FIXED}
        return value.model_copy(update={name: poison(item, text) for name, item in fields.items()})
    return value


def hostile_view(text: str) -> ReportView:
    """Return the full run with `text` in every field that a contract, a system, a worker or a machine can fill."""
    view = full_view()
    evidence = {
        run_id: replace(
            run,
            arms={name: [_hostile_arm(item, text) for item in items] for name, items in run.arms.items()} | {text: []},
            kernels=poison(run.kernels, text),
            prewarm=poison(run.prewarm, text),
            kernel_match=poison(run.kernel_match, text),
            telemetry=poison(run.telemetry, text),
            death=poison(run.death, text),
        )
        for run_id, run in view.evidence.items()
    }
    short = text[:3000].replace("\ud800", "") + " x"  # a contract's text has a letter
    claims = [
        dict(claim) | dict.fromkeys(("title", "why", "if_fails", "upstream"), short) for claim in CONTRACT["claims"]
    ]
    verdicts = [_hostile_verdict(item, text) for item in view.verdicts]
    return replace(
        view,
        header=_hostile_header(view.header, text),
        altered=(text,),
        incomplete=(text,),
        contracts=[contract(title=short, claims=claims)],
        verdicts=verdicts,
        evidence=evidence,
        drill=poison(view.drill, text),
    )


def _hostile_header(header: Header, text: str) -> Header:
    """Return the header with its units, without lone surrogates, with which a `run.json` would be refused."""
    text = text.replace("\ud800", "")
    signed = waiver("tiny", owner=text, reason=text, expires=text)
    unknown: dict[str, Any] = {text: text}
    gpu = GpuFacts.model_construct(name=text, driver=text, **unknown)
    changes: dict[str, Any] = {
        "purpose": "fault",
        "fault": text,
        "command": [text],
        "started_at": text,
        "narrowed": Narrowed.model_construct(claims=[text], workloads=[text]),
        "environment": Environment.model_construct(gpu=gpu, versions={text: text, "torch": text}, **unknown),
        "digests": Digests.model_construct(contracts={text: text}, source=text),
        "waivers": [WaiverRecord.model_construct(**signed)],
    }
    return header.model_copy(update=changes)


def _hostile_arm(item: run_evidence.ArmEvidence, text: str) -> run_evidence.ArmEvidence:
    return replace(
        item,
        start=item.start.model_copy(update={"facts": {text: text, "text_digest": text}}),
        gradients=poison(item.gradients, text),
        capture=poison(item.capture, text),
        syncs=poison(item.syncs, text),
    )


def _hostile_verdict(item: Any, text: str) -> Any:
    figures = {text: next(iter(item.figures.values()), None) or full_view().verdicts[1].figures["max_abs_difference"]}
    return item.model_copy(
        update={"message": text, "reason": text, "figures": figures, "denominators": {text: 3}, "mechanism": text}
    )
