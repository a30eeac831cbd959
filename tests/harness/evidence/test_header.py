"""The header of a run directory: version 1 as it was published, what is refused, what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import finished, header

from harness.api.rejudge import judged
from harness.errors import EvidenceError
from harness.run_directory.bundle import read_bundle


def rewritten(directory: Path, **changes: Any) -> Path:
    """A finished run directory whose header has other values; None takes one away."""
    path = finished(directory, header()).path
    document = json.loads((path / "run.json").read_text()) | changes
    kept = {name: value for name, value in document.items() if name not in changes or changes[name] is not None}
    (path / "run.json").write_text(json.dumps(kept))
    return path


@pytest.mark.parametrize(
    ("first", "purpose", "fault"),
    [(None, "verify", None), ("stale_batch", "fault", "stale_batch"), ("drill", "drill", None)],
)
def test_a_version_1_header_derives_its_purpose_from_its_fault(
    tmp_path: Path, first: str | None, purpose: str, fault: str | None
) -> None:
    path = rewritten(tmp_path / "run", format_version=1, purpose=None)
    document = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**document, "fault": first}))
    read = read_bundle(path).header
    assert (read.format_version, read.purpose, read.fault) == (2, purpose, fault)


def test_a_version_2_header_may_have_a_fault_named_drill(tmp_path: Path) -> None:
    read = read_bundle(finished(tmp_path / "run", header(fault="drill")).path).header
    assert (read.purpose, read.fault) == ("fault", "drill")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"purpose": "rehearsal"}, "purpose: Input should be 'verify', 'fault' or 'drill'"),
        ({"purpose": "fault"}, "the purpose 'fault' does not match the planted fault None"),
        ({"purpose": "drill", "fault": "stale"}, "the purpose 'drill' does not match the planted fault 'stale'"),
        ({"command": "harness verify"}, "command: Input should be a valid"),
        ({"environment": {"gpu": "H200"}}, "environment.gpu"),
        ({"digests": {"contracts": {"../../c": "0"}, "source": "s"}}, "a contract's copy cannot be named ../../c.yaml"),
        ({"waivers": [{"owner": "ada"}]}, "waivers.0.contract: Field required"),
        ({"units": {}}, "units: Input should be a valid"),
        ({"format_version": 4}, "run.json has format version 4, but this harness reads 1 to 3"),
    ],
)
def test_an_error_in_a_run_header_names_the_invalid_field(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = rewritten(tmp_path / "run", **changes)
    with pytest.raises(EvidenceError, match="a run directory must contain a readable run") as error:
        judged([path])
    assert message in str(error.value)


def test_unknown_environment_facts_of_a_header_are_kept_and_missing_facts_are_none(tmp_path: Path) -> None:
    environment = {"cpu": {"cores": 2, "sockets": 1}, "storage": {"kind": "nvme"}}
    read = read_bundle(rewritten(tmp_path / "run", environment=environment)).header.environment
    assert (read.cpu.cores, read.cpu.model, read.gpu.name, read.versions) == (2, None, None, {})
    kept = read.model_dump()
    assert (kept["cpu"]["sockets"], kept["storage"]) == (1, {"kind": "nvme"})
