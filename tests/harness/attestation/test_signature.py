"""Signed and verified with a key; a changed byte, another directory, another key, another result: each is refused."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from needed_programs import absent
from sealing import forge

from harness.api import session
from harness.cli import attest as command
from harness.errors import HarnessError, UsageError
from harness.extras.attestation import PAYLOAD_TYPE, sign, statement_of, statement_text, verify

RUN, FILE = Path("harness-reports/run"), Path("harness-reports/run.intoto.json")
KEY, PUBLIC = Path("key.pem"), Path("key.pub")


def write_keys(name: str, kind: str = "ed25519") -> None:
    """A pair of keys in `NAME.pem` and `NAME.pub`."""
    if any(importlib.util.find_spec(module) is None for module in ("securesystemslib", "cryptography")):
        absent("securesystemslib (the extra `attest`)")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    key: Any = {
        "ed25519": ed25519.Ed25519PrivateKey.generate,
        "ecdsa": lambda: ec.generate_private_key(ec.SECP256R1()),
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
    }[kind]()
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    Path(f"{name}.pem").write_bytes(plain)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    Path(f"{name}.pub").write_bytes(public)


def run_of(*behaviours: str, name: str = "run") -> Path:
    from scripted_system import contract_text

    Path("scripted-v1.yaml").write_text(contract_text(*behaviours))
    session.verify([Path("scripted-v1.yaml")], session.VerifyOptions(name=name))
    return Path("harness-reports") / name


@pytest.fixture
def signed(folder: Path) -> Path:
    """A run that held, and its attestation beside it."""
    write_keys("key")
    command.attest(run_of("held"), key=KEY)
    return folder


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_checking_an_attestation_prints_the_signer_and_the_signed_run(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_keys("key", kind)
    command.attest(run_of("held"), key=KEY)
    capsys.readouterr()
    assert command.check(RUN, FILE, PUBLIC) == 0
    attested = verify(RUN, FILE, PUBLIC)
    manifest = attested.statement.subject[0].digest["sha256"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{FILE}: signed by key {attested.key_id} ({PUBLIC})"
    assert lines[1:3] == ["PASSED: 1 passed, 0 warned, 0 failed", f"manifest.json: sha256:{manifest}"]
    assert lines[-1] == f"the attestation is about this directory: {RUN}"
    envelope = json.loads(FILE.read_text())
    assert envelope["payloadType"] == PAYLOAD_TYPE
    assert base64.b64decode(envelope["payload"]).decode() == statement_text(statement_of(RUN)[0])


def test_checking_an_attestation_of_a_closed_gate_exits_with_the_gates_code(folder: Path) -> None:
    write_keys("key")
    command.attest(run_of("held", "undecided"), key=KEY)
    assert command.check(RUN, FILE, PUBLIC) == 10


def refusal(directory: Path = RUN, key: Path = PUBLIC) -> str:
    with pytest.raises(HarnessError) as refused:
        command.check(directory, FILE, key)
    return str(refused.value)


@pytest.mark.parametrize(
    "name", ["run.json", "verdicts.json", "manifest.json", "contracts/scripted-v1.yaml", "evidence"]
)
def test_a_changed_byte_of_the_directory_is_refused(signed: Path, name: str) -> None:
    path = RUN / name if name != "evidence" else next(RUN.glob("evidence/*/records.jsonl"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert path.name in refusal()


def test_a_changed_byte_of_the_envelope_is_refused(signed: Path) -> None:
    """Only changed white space is accepted, and a changed last digit of base64, which may have unused bits."""
    whole, accepted = FILE.read_bytes(), []
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1
        FILE.write_bytes(changed)
        try:
            verify(RUN, FILE, PUBLIC)
        except HarnessError:
            continue
        accepted.append(whole[place : place + 1])
    assert [sign for sign in accepted if not sign.isspace()] == []


def test_an_attestation_checked_against_a_different_run_directory_is_refused(signed: Path) -> None:
    other = run_of("held", "also_held", name="other")
    assert "a statement about manifest.json" in refusal(other)


def test_an_attestation_of_a_forged_and_resealed_directory_is_refused(signed: Path) -> None:
    forge(RUN / "run.json", lambda header: header["environment"]["gpu"].update(name="NVIDIA H200"))
    assert "a statement about manifest.json" in refusal()


def test_an_attestation_checked_with_a_different_key_is_refused(signed: Path) -> None:
    write_keys("other")
    assert "must be signed by the key other.pub; found no signature by this key" in refusal(key=Path("other.pub"))


def test_a_signature_by_a_different_key_under_the_right_key_id_is_refused(signed: Path) -> None:
    write_keys("other")
    envelope = json.loads(FILE.read_text())
    forged = json.loads(sign(statement_text(statement_of(RUN)[0]), Path("other.pem"))[0])
    forged["signatures"][0]["keyid"] = envelope["signatures"][0]["keyid"]
    FILE.write_text(json.dumps(forged))
    assert "found no signature by this key that fits the statement" in refusal()


def passed(statement: Any) -> None:
    statement["predicate"]["result"] = "PASSED"


def all_passed(statement: Any) -> None:
    predicate = statement["predicate"]
    predicate["passedTests"] += predicate.pop("failedTests")
    predicate["failedTests"] = []
    passed(statement)


def other_sources(statement: Any) -> None:
    statement["subject"][-1]["digest"]["sha256"] = "0" * 64


def fewer_subjects(statement: Any) -> None:
    del statement["subject"][-1]


def one_more(statement: Any) -> None:
    statement["predicate"]["url"] = "https://example.org"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (passed, "found the result PASSED, but the gate over this directory gives FAILED"),
        (all_passed, "found the result PASSED, but the gate over this directory gives FAILED"),
        (other_sources, "found a statement about sources of scripted_system 000"),
        (fewer_subjects, "found a predicate that differs from the one that this harness derives"),
        (one_more, "the statement: predicate.url: Extra inputs are not permitted"),
    ],
)
@pytest.mark.parametrize("behaviour", ["undecided", "not_run", "violated", "error"])
def test_a_correctly_signed_statement_that_contradicts_the_directory_is_refused(
    folder: Path, behaviour: str, change: Callable[[Any], None], told: str
) -> None:
    write_keys("key")
    statement = json.loads(statement_text(statement_of(run_of("held", behaviour))[0]))
    change(statement)
    FILE.write_text(sign(json.dumps(statement, sort_keys=True, separators=(",", ":")), KEY)[0])
    assert told in refusal()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"payload": "", "payloadType": "x", "signatures": []}', "[" * 10_000]
)
def test_a_file_that_is_not_an_envelope_is_an_attestation_error(signed: Path, text: str) -> None:
    FILE.write_text(text)
    assert "an attestation " in refusal()


def test_a_valid_signature_of_a_different_text_is_not_an_attestation(signed: Path) -> None:
    FILE.write_text(sign("hello", KEY)[0])
    assert "the signed statement must equal the statement that the harness derives from the run directory" in refusal()
    envelope = json.loads(FILE.read_text())
    FILE.write_text(json.dumps({**envelope, "payloadType": "text/plain"}))
    assert "the content of an attestation must be of type application/vnd.in-toto+json; found 'text/plain'" in refusal()


@pytest.mark.parametrize("key", [PUBLIC, Path("nowhere"), Path("harness-reports")])
def test_an_unusable_key_file_is_a_usage_error(signed: Path, key: Path) -> None:
    with pytest.raises(UsageError, match="key"):
        command.attest(RUN, key=key)
    with pytest.raises(UsageError, match="key"):
        verify(RUN, FILE, KEY if key == PUBLIC else key)


def test_an_attestation_can_be_moved_with_its_directory(signed: Path) -> None:
    shutil.copytree("harness-reports", "elsewhere")
    attested = verify(Path("elsewhere/run"), Path("elsewhere/run.intoto.json"), PUBLIC)
    assert attested.statement.predicate.result == "PASSED"
