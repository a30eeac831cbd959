"""Remove the names of this machine, its user and its folders from everything that is published.

Names are removed while evidence is collected, before anything is judged and before the manifest is written. Verdicts,
pages and digests are therefore computed from the text without names, and a later judgement reads the same text.
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

NOTE = "names of host, user and folders"  # what was removed, as the header of the run states it
HOST, USER, FOLDER = "<host>", "<user>", "<folder>/"
# Names that are not removed, because they identify no person. `root` is also a word in many messages.
COMMON = {"root", "localhost", "user", "runner"}
SHORTEST = 3
# Matches the folders in an absolute path. A slash inside a longer word does not start a path.
_FOLDERS = re.compile(r"""(?:(?<=file://)|(?<![\w.~<>/-]))~?/(?:[^\s/'"\\:;,<>()\[\]{}|=]+/)+""")
# Matches a string in JSON, and also the colon after it if the string is a key.
_TEXT_IN_JSON = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?')
Model = TypeVar("Model", bound=BaseModel)


def wanted(asked: bool | None) -> bool:
    """Return True if names must be removed. asked: the user's choice; None means that names are removed only in CI."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"} if asked is None else asked


@dataclass(frozen=True)
class Redaction:
    """The names to remove from texts. kept: texts that stay unchanged, because evidence and contract must agree on
    them."""

    hosts: frozenset[str]
    users: frozenset[str]
    kept: frozenset[str] = frozenset()

    def text(self, text: str) -> str:
        """Return the text with a placeholder in place of each name."""
        if text in self.kept:
            return text
        text = _FOLDERS.sub(FOLDER, text)
        for names, placeholder in ((self.hosts, HOST), (self.users, USER)):
            for name in sorted(names, key=len, reverse=True):
                text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", placeholder, text)
        return text

    def json(self, text: str) -> str:
        """Return JSON text with the names removed from its text values. Keys, numbers and spaces stay unchanged."""

        def one(found: re.Match[str]) -> str:
            if found[2]:
                return found[0]
            value = json.loads(found[0])
            redacted = self.text(value)
            return found[0] if redacted == value else json.dumps(redacted, ensure_ascii=False)

        return _TEXT_IN_JSON.sub(one, text)

    def model(self, record: Model) -> Model:
        """Return the record with the names removed from its texts."""
        return type(record).model_validate_json(self.json(record.model_dump_json()))

    def directory(self, directory: Path) -> None:
        """Remove the names from the files of a run's evidence, in place. CSV files, files that are not text, and files
        that are too large stay unchanged."""
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
        """Remove the names from JSON text, only from its text values. Any other text, such as an incomplete line, is
        treated as plain text."""
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text)
        return self.json(text)


def of_this_machine(kept: Collection[str] = ()) -> Redaction:
    """Return an object that removes the names of this machine and this user. kept: texts that stay unchanged."""
    host = socket.gethostname()
    users = {os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), os.path.expanduser("~").rpartition("/")[2]}  # noqa: PTH111 - without a home folder it raises no error
    with suppress(KeyError, OSError):  # the user id may have no name, for example in a container
        users.add(getpass.getuser())
    hosts = {host, host.partition(".")[0], os.environ.get("SLURMD_NODENAME", "")}
    return Redaction(_names(hosts, kept), _names(users, kept), frozenset(kept))


def _names(names: Collection[str], kept: Collection[str]) -> frozenset[str]:
    """Return the names to remove. Names that are short, common or used by the contract (`kept`) are left out."""
    return frozenset(name for name in names if len(name) >= SHORTEST and name not in COMMON and name not in kept)


def texts_in(value: Any) -> set[str]:
    """Return every text in nested lists and mappings, including their keys."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {text for key, item in value.items() for text in texts_in(key) | texts_in(item)}
    return {text for item in value for text in texts_in(item)} if isinstance(value, list | tuple) else set()
