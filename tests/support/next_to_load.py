"""Run a command next to two processes that are always busy: `python tests/support/next_to_load.py COMMAND...`."""

from __future__ import annotations

import os
import subprocess
import sys

# A busy process looks for its parent, so that it ends with this process however this one ends.
BUSY = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(100_000))"


def main(command: list[str]) -> int:
    """Run the command and return its exit code."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(2)]
    try:
        return subprocess.call(command)
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
