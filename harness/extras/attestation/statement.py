"""Make the statement to sign: an in-toto Statement about one whole run directory, from the directory alone.

Statement v1 with the predicate test-result v0.1 (https://in-toto.io/attestation/test-result/v0.1). Equal directories
give equal bytes, so that a verifier makes the statement again and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.api.session import Judgement
from harness.errors import EvidenceError, ExitCode
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, parse
from harness.extras.attestation.envelope import opened
from harness.finished_runs.rejudge import judged, rejudged
from harness.judging.verdict import Status, Verdict
from harness.numbers import dump_json
from harness.report.headline import HELD
from harness.run_directory.bundle import Bundle, Header
from harness.run_directory.manifest import ListedFile

TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE: Literal["https://in-toto.io/attestation/test-result/v0.1"] = (
    "https://in-toto.io/attestation/test-result/v0.1"
)
Result = Literal["PASSED", "WARNED", "FAILED"]


class Resource(Record):
    """A ResourceDescriptor: something by its digest."""

    name: str
    digest: dict[str, str]
    annotations: dict[str, str] | None = None


class Predicate(Record):
    """The predicate. A unit is `contract/claim/workload`: passed when it held, warned when its violation is waived, and
    failed otherwise, undecided and not run too.
    """

    result: Result
    configuration: list[Resource]  # what was demanded: the contracts and the header, with the part that was asked for
    passed_tests: list[str] = Field(alias="passedTests")
    warned_tests: list[str] = Field(alias="warnedTests")
    failed_tests: list[str] = Field(alias="failedTests")


class Statement(Record):
    """The whole statement. Its subjects: the manifest of the run directory, and the sources of the trainer."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(TYPE, alias="_type")
    subject: list[Resource]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"] = Field(PREDICATE, alias="predicateType")
    predicate: Predicate


def statement_text(statement: Statement) -> str:
    """Return the text whose bytes are signed: the statement as JSON."""
    return dump_json(statement.model_dump(mode="json", by_alias=True, exclude_none=True))


def statement_of(directory: Path) -> tuple[Statement, Judgement]:
    """Return the statement about a run directory, and the gate's judgement behind it.

    Raises EvidenceError for a directory that is not whole, whose verdicts do not follow from its evidence, or that is
    of a planted fault.
    """
    again = rejudged(directory)
    if again.problems:
        raise EvidenceError(
            "only a whole run is attested",
            where=str(directory),
            got="; ".join(again.problems[:3]),
            remedy="`harness judge --check` lists it all",
        )
    [bundle], gate = judged([directory], gate=True)
    subjects = [Resource(name=layout.MANIFEST, digest={"sha256": gate.manifest or ""}), *_sources(bundle.header)]
    return Statement(subject=subjects, predicate=_predicate(bundle, gate)), gate


def _sources(header: Header) -> list[Resource]:
    """Return the sources of the packages that hold systems; older runs have one digest for all packages."""
    packages = {name: digest for name, digest in header.digests.packages.items() if name != "harness"}
    found = packages or {"all packages": header.digests.source}
    return [Resource(name=f"sources of {name}", digest={"sha256": digest}) for name, digest in sorted(found.items())]


def _predicate(bundle: Bundle, gate: Judgement) -> Predicate:
    tests: dict[str, list[str]] = {"passedTests": [], "warnedTests": [], "failedTests": []}
    for verdict in gate.verdicts:
        waived = gate.view.waiver(verdict) is not None
        held = "passedTests" if verdict.status is Status.PASS else "failedTests"
        tests["warnedTests" if waived else held].append(_name(verdict))
    return Predicate(result=_result(gate), configuration=_configuration(bundle, gate), **tests)


def _result(gate: Judgement) -> Result:
    """Return PASSED for an open gate, WARNED for a gate that waivers keep open, else FAILED."""
    if gate.exit_code is not ExitCode.HELD:
        return "FAILED"
    return "PASSED" if gate.headline.word == HELD else "WARNED"


def _name(verdict: Verdict) -> str:
    return f"{verdict.contract}/{verdict.claim}/{verdict.workload}"


def _configuration(bundle: Bundle, gate: Judgement) -> list[Resource]:
    within = bundle.seal.within
    listed: list[ListedFile] = [] if within is None else within.files
    part = gate.view.narrowed()
    return [
        Resource(
            name=file.path,
            digest={"sha256": file.sha256},
            annotations={"narrowed": part} if part and file.path == layout.HEADER else None,
        )
        for file in listed
        if file.path == layout.HEADER or file.path.startswith((f"{layout.CONTRACTS}/", f"{layout.WAIVERS}/"))
    ]


@dataclass(frozen=True)
class Attested:
    """Who signed what: the key's id, the statement, and the gate over the directory that it is of."""

    key_id: str
    statement: Statement
    gate: Judgement


def verify(directory: Path, file: Path, key: Path) -> Attested:
    """Verify that the key signed what the directory says. Raises EvidenceError if not, UsageError for a bad key."""
    text, key_id = opened(file, key)
    own, gate = statement_of(directory)
    if text != statement_text(own):
        raise EvidenceError(
            "an attestation says what its run directory says", where=str(file), got=_difference(text, own)
        )
    return Attested(key_id, own, gate)


def _difference(text: str, own: Statement) -> str:
    """Return the first difference between the signed statement and the directory's own, in words."""
    try:
        signed = parse(text.encode(), Statement, "the statement")
    except Damaged as damage:
        return str(damage)
    for theirs, ours in zip(signed.subject, own.subject, strict=False):
        if theirs != ours:
            return f"a statement about {_named(theirs.name, theirs.digest)}, here lies {_named(ours.name, ours.digest)}"
    if signed.predicate.result != own.predicate.result:
        return f"the result {signed.predicate.result}, this directory's gate gives {own.predicate.result}"
    return "another predicate than this directory gives under this harness"


def _named(name: str, digest: dict[str, str]) -> str:
    return ascii(f"{name} {digest.get('sha256')}")[1:-1][:200]
