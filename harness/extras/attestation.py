"""Make an in-toto Statement about a whole run directory, sign it in a DSSE envelope, and verify such a signature."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harness.api.rejudge import judged, rejudged
from harness.api.session import Judgement
from harness.errors import EvidenceError, ExitCode, UsageError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, parse, read_bytes
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted, dump_json
from harness.platform.paths import command_for
from harness.report.headline import HELD
from harness.run_directory.bundle import Bundle, Header
from harness.run_directory.seal import ListedFile

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MOST_BYTES = 16 * 2**20
_KEY_BYTES = 64 * 2**10


def sign(text: str, key: Path) -> tuple[str, str]:
    """Return the signed envelope of a statement, as text, and the id of the key.

    key: a PEM file with a private key (PKCS #8, without a password). Raises UsageError if the key cannot be used.
    """
    _need_library()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    try:
        signer = CryptoSigner(load_pem_private_key(_key(key), password=None))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise _no_key(key, "must be a private key in PEM (PKCS #8), without a password", error) from error
    envelope = Envelope(text.encode(), PAYLOAD_TYPE, {})
    signature = envelope.sign(signer)
    return json.dumps(envelope.to_dict(), indent=1) + "\n", str(signature.keyid)


def opened(file: Path, key: Path) -> tuple[str, str]:
    """Return the statement in an envelope, as text, and the id of the key that signed it.

    key: a PEM file with the public key. Raises UsageError for an invalid key. Raises EvidenceError if the file is not
    an envelope, or is not signed with this key.
    """
    _need_library()
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    try:
        public = SSlibKey.from_crypto(load_pem_public_key(_key(key)))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise _no_key(key, "must be a public key in PEM", error) from error
    try:
        envelope = Envelope.from_dict(_json(file))
    except Exception as error:  # the library can raise any exception if the file is not an envelope
        raise EvidenceError("an attestation must be a DSSE envelope", where=str(file), got=_short(error)) from error
    if envelope.payload_type != PAYLOAD_TYPE:
        payload_type = repr(envelope.payload_type)[:100]
        raise EvidenceError(
            f"the content of an attestation must be of type {PAYLOAD_TYPE}", where=str(file), got=payload_type
        )
    try:
        envelope.verify([public], 1)
        text = envelope.payload.decode()
    except (VerificationError, UnicodeDecodeError) as error:
        no_signature = "no signature by this key that fits the statement"
        raise EvidenceError(
            f"the attestation must be signed by the key {key}", where=str(file), got=no_signature
        ) from error
    return text, str(public.keyid)


def _need_library() -> None:
    missing_packages = [name for name in ("securesystemslib", "cryptography") if find_spec(name) is None]
    if missing_packages:
        number_missing, install_packages = (
            counted(len(missing_packages), "missing package"),
            f"`{command_for('attest')}` installs what is missing",
        )
        raise UsageError(
            f"a signature needs {' and '.join(missing_packages)}", got=number_missing, remedy=install_packages
        )


def _key(path: Path) -> bytes:
    """Return the bytes of a key file. The path may be a link or a pipe, because secrets are often passed this way."""
    try:
        with path.open("rb") as file:
            return file.read(_KEY_BYTES)
    except OSError as error:
        raise UsageError("the key must be a readable file", where=str(path), got=str(error.strerror)) from error


def _no_key(path: Path, rule: str, error: Exception) -> UsageError:
    return UsageError(f"the key {rule}", where=str(path), got=_short(error))


def _json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path, _MOST_BYTES))
    except Damaged as damage:
        raise ValueError(str(damage)) from damage


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {ascii(str(error))[1:-1][:200]}"


# The code below creates the statement that is signed: an in-toto Statement about one complete run directory, computed
# only from the directory. It is a Statement v1 with the predicate test-result v0.1
# (https://in-toto.io/attestation/test-result/v0.1). Equal directories give equal bytes, so a verifier can compute the
# statement again and compare the bytes.

TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE: Literal["https://in-toto.io/attestation/test-result/v0.1"] = (
    "https://in-toto.io/attestation/test-result/v0.1"
)
Result = Literal["PASSED", "WARNED", "FAILED"]


class Resource(Record):
    """An in-toto ResourceDescriptor: the name of a resource, and its digest."""

    name: str
    digest: dict[str, str]
    annotations: dict[str, str] | None = None


class Predicate(Record):
    """The predicate of the in-toto statement. Each unit is a test with the name `contract/claim/workload`.

    A test is passed if the unit held, and warned if its violation is waived. Otherwise it is failed, also if the unit
    is undecided or was not run.
    """

    result: Result
    # what was required: contracts, waivers, and `run.json`, which names the selected part of the contracts
    configuration: list[Resource]
    passed_tests: list[str] = Field(alias="passedTests")
    warned_tests: list[str] = Field(alias="warnedTests")
    failed_tests: list[str] = Field(alias="failedTests")


class Statement(Record):
    """An in-toto statement. Its subjects are the manifest of the run directory and the sources of the trainer."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(TYPE, alias="_type")
    subject: list[Resource]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"] = Field(PREDICATE, alias="predicateType")
    predicate: Predicate


def statement_text(statement: Statement) -> str:
    """Return the statement as JSON text. The bytes of this text are signed."""
    return dump_json(statement.model_dump(mode="json", by_alias=True, exclude_none=True))


def statement_of(directory: Path) -> tuple[Statement, Judgement]:
    """Return the statement about a run directory, and the judgement of the directory as a gate, on which the statement
    is based.

    Raises EvidenceError if the directory is incomplete, if its verdicts contradict its evidence, or if a fault was
    planted.
    """
    again = rejudged(directory)
    if again.problems:
        raise EvidenceError(
            "only a complete and unchanged run can be attested",
            where=str(directory),
            got="; ".join(again.problems[:3]),
            remedy="see all differences with `harness judge --check`",
        )
    [bundle], gate = judged([directory], gate=True)
    subjects = [Resource(name=layout.MANIFEST, digest={"sha256": gate.manifest or ""}), *_sources(bundle.header)]
    return Statement(subject=subjects, predicate=_predicate(bundle, gate)), gate


def _sources(header: Header) -> list[Resource]:
    """Return a resource with the digest of the sources for each package that contains systems. A run of an older
    version has only one digest for all packages together."""
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
    """Return FAILED for a closed gate, WARNED for a gate that is open only because of waivers, and otherwise PASSED."""
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
    """A verified attestation: the id of the key, the statement, and the result of judging the directory as a gate."""

    key_id: str
    statement: Statement
    gate: Judgement


def verify(directory: Path, file: Path, key: Path) -> Attested:
    """Verify that the key signed the statement about this directory. Raises EvidenceError if the file has no such
    signature, and UsageError for an invalid key."""
    text, key_id = opened(file, key)
    own, gate = statement_of(directory)
    if text != statement_text(own):
        raise EvidenceError(
            "the signed statement must equal the statement that the harness derives from the run directory",
            where=str(file),
            got=_difference(text, own),
        )
    return Attested(key_id, own, gate)


def _difference(text: str, own: Statement) -> str:
    """Return, as text, the first difference between the signed statement `text` and `own`, the statement about the
    directory as it is now."""
    try:
        signed = parse(text.encode(), Statement, "the statement")
    except Damaged as damage:
        return str(damage)
    for theirs, ours in zip(signed.subject, own.subject, strict=False):
        if theirs != ours:
            return (
                f"a statement about {_named(theirs.name, theirs.digest)}, but the directory is "
                f"{_named(ours.name, ours.digest)}"
            )
    if signed.predicate.result != own.predicate.result:
        return f"the result {signed.predicate.result}, but the gate over this directory gives {own.predicate.result}"
    return "a predicate that differs from the one that this harness derives from the directory"


def _named(name: str, digest: dict[str, str]) -> str:
    return ascii(f"{name} {digest.get('sha256')}")[1:-1][:200]
