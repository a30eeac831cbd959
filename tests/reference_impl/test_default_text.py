"""The default text is one file: batches depend on no Python version, environment variable or folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reference_impl import data
from reference_impl.errors import ReferenceImplError

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "reference_impl" / "text"
DIGEST = "7dd38bc19ee54289f6d1229194ee5318d31aa42bf93e0590ea390c4b8735e1f4"
BATCHES = "19a6242d18934b91"
# Prints the files that reading the default text opens, the modules that it imports, and a digest of six batches.
CHILD = """
import hashlib, json, sys
from reference_impl import data
from reference_impl.transformers_twin import text as twin
opened, heard = [], []
def hear(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))
    elif event == "import":
        heard.append(arguments[0])
sys.addaudithook(hear)
ours, theirs = data.read_text(None), twin.read_text(None)
files, modules = sorted(set(opened)), sorted(set(heard))
batches = data.TextBatches(data.tokenize(ours, None), 256, 3)
digest = hashlib.sha256()
for shape in ((4, 64), (2, 8)):
    for index in (0, 1, 5000):
        for tensor in batches.batch(index, *shape):
            digest.update(tensor.numpy().astype("<i8").tobytes())
print(json.dumps([files, modules, batches.digest, hashlib.sha256(theirs).hexdigest(), digest.hexdigest()[:16]]))
"""
ENVIRONMENTS = {
    "as it is": {},
    "another locale": {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "another hash seed and time zone": {"PYTHONHASHSEED": "12345", "TZ": "Asia/Kathmandu"},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_reading_the_default_text_opens_only_its_own_file(environment: dict[str, str], tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    files, modules, trainer, twin, batches = json.loads(child.stdout)
    assert files == [str(TEXT / "python-topics.txt")]
    assert modules == []
    assert (trainer, twin) == (DIGEST, DIGEST)
    assert batches == BATCHES


def test_a_default_text_with_changed_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "python-topics.txt"
    changed.write_bytes(data.DEFAULT_TEXT.read_bytes().replace(b"\n", b"\r\n"))
    monkeypatch.setattr(data, "DEFAULT_TEXT", changed)
    with pytest.raises(ReferenceImplError, match=rf"data: python-topics.txt has SHA-256 .*, not {DIGEST}; restore"):
        data.read_text(None)


def test_the_default_text_comes_with_its_digest_origin_and_license() -> None:
    page = (TEXT / "README.md").read_text(encoding="utf-8")
    assert DIGEST in page
    assert "Python Software Foundation" in page
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in (TEXT / "LICENSE.txt").read_text(encoding="utf-8")
