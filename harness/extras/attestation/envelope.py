"""Sign statements in DSSE envelopes (https://github.com/secure-systems-lab/dsse), or open them, by securesystemslib."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError, UsageError
from harness.evidence.files import Damaged, read_bytes
from harness.platform.installing import command_for

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MOST_BYTES = 16 * 2**20
_KEY_BYTES = 64 * 2**10


def sign(text: str, key: Path) -> tuple[str, str]:
    """Return the signed envelope of a statement, as text, and the id of the key that signed it.

    key: a private key in a PEM file (PKCS #8, without a password). Raises UsageError where it cannot be used.
    """
    _need_library()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    try:
        signer = CryptoSigner(load_pem_private_key(_key(key), password=None))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise _no_key(key, "a private key in PEM (PKCS #8), without a password", error) from error
    envelope = Envelope(text.encode(), PAYLOAD_TYPE, {})
    signature = envelope.sign(signer)
    return json.dumps(envelope.to_dict(), indent=1) + "\n", str(signature.keyid)


def opened(file: Path, key: Path) -> tuple[str, str]:
    """Return the statement in an envelope, as text, and the id of the key that signed it.

    key: the public key in a PEM file; UsageError if it is not one. Raises EvidenceError where the file is not an
    envelope, or is not signed by that key.
    """
    _need_library()
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    try:
        public = SSlibKey.from_crypto(load_pem_public_key(_key(key)))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise _no_key(key, "a public key in PEM", error) from error
    try:
        envelope = Envelope.from_dict(_json(file))
    except Exception as error:  # whatever an untrusted file makes the library stumble over
        raise EvidenceError("an attestation is a DSSE envelope", where=str(file), got=_short(error)) from error
    if envelope.payload_type != PAYLOAD_TYPE:
        got = repr(envelope.payload_type)[:100]
        raise EvidenceError(f"an attestation holds {PAYLOAD_TYPE}", where=str(file), got=got)
    try:
        envelope.verify([public], 1)
        text = envelope.payload.decode()
    except (VerificationError, UnicodeDecodeError) as error:
        got = "no signature by it that fits the statement"
        raise EvidenceError(f"an attestation is signed by the key {key}", where=str(file), got=got) from error
    return text, str(public.keyid)


def _need_library() -> None:
    missing = [name for name in ("securesystemslib", "cryptography") if find_spec(name) is None]
    if missing:
        remedy = f"`{command_for('attest')}` adds it"
        raise UsageError(f"a signature needs {' and '.join(missing)}", got="it is not installed", remedy=remedy)


def _key(path: Path) -> bytes:
    """Return the bytes of a key's file. It may be a link or a pipe: secrets are often passed that way."""
    try:
        with path.open("rb") as file:
            return file.read(_KEY_BYTES)
    except OSError as error:
        raise UsageError("a key is a file that can be read", where=str(path), got=str(error.strerror)) from error


def _no_key(path: Path, rule: str, error: Exception) -> UsageError:
    return UsageError(f"the key is {rule}", where=str(path), got=_short(error))


def _json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path, _MOST_BYTES))
    except Damaged as damage:
        raise ValueError(str(damage)) from damage


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {ascii(str(error))[1:-1][:200]}"
