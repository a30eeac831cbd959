"""Remove names of this machine, its user and its folders from everything that is published.

Names are removed while evidence is collected, before anything is judged or sealed. Therefore verdicts, pages and
digests are computed from the redacted text, and a later judgement reads the same text.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from harness.evidence.files import Damaged, read_bytes

NOTE = "names of host, user and folders"  # the text in the header that says what was removed
HOST, USER, FOLDER = "<host>", "<user>", "<folder>/"
# Names that identify no person. In addition, `root` is a word in many messages.
COMMON = {"root", "localhost", "user", "runner"}
SHORTEST = 3
# Matches the folders of an absolute path, unless the character before the path shows that it is part of a longer word.
_FOLDERS = re.compile(r"""(?:(?<=file://)|(?<![\w.~<>/-]))~?/(?:[^\s/'"\\:;,<>()\[\]{}|=]+/)+""")
# Matches a string in JSON. If the string is a key, also matches the colon after it.
_TEXT_IN_JSON = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?')
Model = TypeVar("Model", bound=BaseModel)


def wanted(asked: bool | None) -> bool:
    """Return True if texts are to be redacted. asked: the user's choice; with None, only texts in CI are redacted."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"} if asked is None else asked


@dataclass(frozen=True)
class Redaction:
    """The names to remove. kept: values that are not redacted, because evidence and contract must agree on them."""

    hosts: frozenset[str]
    users: frozenset[str]
    kept: frozenset[str] = frozenset()

    def text(self, text: str) -> str:
        """Return the text with each name replaced by a placeholder."""
        if text in self.kept:
            return text
        text = _FOLDERS.sub(FOLDER, text)
        for names, placeholder in ((self.hosts, HOST), (self.users, USER)):
            for name in sorted(names, key=len, reverse=True):
                text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", placeholder, text)
        return text

    def json(self, text: str) -> str:
        """Return JSON text with its text values redacted. Keys, numbers and spaces do not change."""

        def one(found: re.Match[str]) -> str:
            if found[2]:
                return found[0]
            value = json.loads(found[0])
            redacted = self.text(value)
            return found[0] if redacted == value else json.dumps(redacted, ensure_ascii=False)

        return _TEXT_IN_JSON.sub(one, text)

    def model(self, record: Model) -> Model:
        """Return the record with its texts redacted."""
        return type(record).model_validate_json(self.json(record.model_dump_json()))

    def directory(self, directory: Path) -> None:
        """Redact the files of a run's evidence in place. Files that are not text or are too large do not change."""
        for path in sorted(directory.rglob("*")):
            try:
                before = read_bytes(path).decode("utf-8")
            except (Damaged, UnicodeDecodeError):
                continue
            if path.suffix == ".csv":
                continue
            redact = self._json_or_text if path.suffix in {".json", ".jsonl"} else self.text
            parts = [before] if path.suffix == ".json" else before.split("\n")
            after = "\n".join(map(redact, parts))
            if after != before:
                path.write_text(after, encoding="utf-8", newline="")

    def _json_or_text(self, text: str) -> str:
        """Return JSON text with its text values redacted. Redact other text, such as a cut-off line, as plain text."""
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text)
        return self.json(text)


def of_this_machine(kept: Collection[str] = ()) -> Redaction:
    """Return a redaction of the names of this machine and this user. kept: values that are not redacted."""
    host = socket.gethostname()
    users = {os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), os.path.expanduser("~").rpartition("/")[2]}  # noqa: PTH111 - without a home folder it raises no error
    with suppress(KeyError, OSError):  # the user id may have no name, as in a container
        users.add(getpass.getuser())
    hosts = {host, host.partition(".")[0], os.environ.get("SLURMD_NODENAME", "")}
    return Redaction(_names(hosts, kept), _names(users, kept), frozenset(kept))


def _names(names: Collection[str], kept: Collection[str]) -> frozenset[str]:
    """Return the names to remove, without short names, common names, and words of the contract (`kept`)."""
    return frozenset(name for name in names if len(name) >= SHORTEST and name not in COMMON and name not in kept)


def texts_in(value: Any) -> set[str]:
    """Return every text in nested plain values, including keys."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {text for key, item in value.items() for text in texts_in(key) | texts_in(item)}
    return {text for item in value for text in texts_in(item)} if isinstance(value, list | tuple) else set()
