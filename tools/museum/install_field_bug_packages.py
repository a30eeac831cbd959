"""Install the package releases that entries of examples/field_bugs need, each into its own folder.

    python tools/museum/install_field_bug_packages.py

Releases that are already installed are kept. Only wheels are installed, without dependencies. An entry must therefore
list all packages that the environment does not have. The last line shows the total size in megabytes and the time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from field_bugs import entries

from examples.field_bugs.packages import FOLDER, folder_of


def releases() -> list[str]:
    """Return every release that a form of an entry needs."""
    return sorted({release for bug in entries().values() for needed in bug.installed.values() for release in needed})


def install(release: str) -> None:
    """Install a release into a temporary folder that is then renamed. Raises `CalledProcessError` if pip fails."""
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".unfinished-") as name:
        target = Path(name) / "release"
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), release]
        subprocess.run(command, check=True)
        target.rename(folder_of(release))


def main() -> int:
    began, needed = time.monotonic(), releases()
    missing = [release for release in needed if not folder_of(release).is_dir()]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for release in missing:
        install(release)
    size = sum(path.stat().st_size for release in needed for path in folder_of(release).rglob("*") if path.is_file())
    print(f"{len(needed)} releases, {len(missing)} new: {size / 1e6:.0f} MB, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
