"""Write packages as an installer leaves them in a folder of any name: their files, and the record that lists these."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def record_installed(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files and their record. files: text by path below the folder."""
    record = [
        f"{name}-1.0.dist-info/{file}" for name in [next(iter(files)).split("/")[0]] for file in ("METADATA", "RECORD")
    ]
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        record.append(f"{name},sha256=0,{len(text)}")
    information = folder / record[0].partition("/")[0]
    information.mkdir()
    (information / "RECORD").write_text("".join(f"{line},,\n" for line in ["../../bin/tool", *record]))
