"""Test installation and use on unusual machines, such as a machine without network or with a read-only home directory.

    python tools/long_checks/strange_machines.py [--installed VENV] [--quick]

`make install` installs the tree at HEAD, as a user without a name whose home directory is read-only. In each of
`CIRCUMSTANCES`, the script writes a contract for the trainer in the documentation, checks the contract, verifies it as
a gate, judges the run again, writes its report, and runs `doctor`. Without `--quick`, `make verify`, `make test` and
`make test-slow` then run under all circumstances at once, with UTF-8. A circumstance that cannot be made on this
machine is printed and skipped. The exit code is 1 if a result differs from that on an ordinary machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTED = ROOT / "docs" / "plugging-in-a-trainer.md"
PYTHON = getattr(sys, "_base_executable", sys.executable)
CLOSED = "closed"  # name of the read-only folder in the work folder
WITHOUT_COMPILERS = "bin"
_COMPILER = re.compile(r"gcc|clang|(^|-)(cc|c\+\+|g\+\+|cpp|c89|c99|tcc|ld|as|nvcc|icx)([-.\d]*)$")
_USER = ("--user", "--map-user=54321", "--map-group=54321")  # a user number that has no line in /etc/passwd
_LEFT = ("PATH", "SSL_CERT_FILE", "PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "HTTPS_PROXY")


@dataclass(frozen=True)
class Circumstance:
    """A difference from an ordinary machine. In `variables`, `{work}` is the work folder; None removes a variable."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    other_user: bool = False
    offline: bool = False

    def command(self, command: Sequence[str]) -> list[str]:
        namespaces = [*(_USER if self.other_user else ("--user", "--map-current-user")), *["--net"] * self.offline]
        return ["unshare", *namespaces, *command] if self.other_user or self.offline else [*command]

    def can_be_made(self) -> bool:
        """Return True if this circumstance can be simulated on this machine."""
        command = self.command(["true"])
        return shutil.which(command[0]) is not None and subprocess.run(command, check=False).returncode == 0

    def environment(self, work: Path) -> dict[str, str]:
        given = {name: os.environ[name] for name in _LEFT if name in os.environ}
        given |= {"HOME": str(work / "home"), "LANG": "C.UTF-8"}
        for name, value in self.variables.items():
            given.pop(name, None)
            if value is not None:
                given[name] = value.format(work=work)
        return given


_PLAIN_LOCALE = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
_CLOSED_HOME = {"HOME": f"{{work}}/{CLOSED}"}
_ALL: dict[str, str | None] = {
    **_PLAIN_LOCALE,
    **_CLOSED_HOME,
    "PATH": f"{{work}}/{WITHOUT_COMPILERS}",
    "TMPDIR": "{work}/nowhere",
}
# Without these variables, Python uses UTF-8 even under LANG=C. Tests need UTF-8 to read the project's files.
README = Circumstance({**_ALL, "PYTHONUTF8": None, "PYTHONCOERCECLOCALE": None}, other_user=True, offline=True)
CIRCUMSTANCES = {
    "an ordinary machine": Circumstance(),
    "a user without a name": Circumstance(other_user=True),
    "a home directory that is not writable": Circumstance(_CLOSED_HOME, other_user=True),
    "no home": Circumstance({"HOME": None}, other_user=True),
    "no compiler": Circumstance({"PATH": f"{{work}}/{WITHOUT_COMPILERS}"}),
    "no network": Circumstance(offline=True),
    "LANG=C, and no UTF-8 mode": Circumstance(_PLAIN_LOCALE),
    "a TMPDIR that does not exist": Circumstance({"TMPDIR": "{work}/nowhere"}),
    "a TMPDIR that is not writable": Circumstance({"TMPDIR": f"{{work}}/{CLOSED}"}, other_user=True),
    "all at once": Circumstance(_ALL, other_user=True, offline=True),
}
INSTALLATION = Circumstance(_CLOSED_HOME, other_user=True)
COMMANDS = (
    ("init", "train.py:make_step", "--no-compile"),
    ("check", "contracts"),
    ("verify", "contracts", "--gate", "--name", "run"),
    ("judge", "--check", "harness-reports/run"),
    ("report", "copied"),
    ("doctor", "contracts"),
)


def documented_trainer(folder: Path) -> None:
    """Write the trainer of a documentation page into a new folder, with the correction that the page makes later."""
    page = DOCUMENTED.read_text(encoding="utf-8")
    folder.mkdir(parents=True)
    [text] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def make_step" in block]
    (folder / "train.py").write_text(text, encoding="utf-8")
    [mend] = re.findall(r"^\$ (sed .*)$", page, re.MULTILINE)
    subprocess.run(["sh", "-c", mend], cwd=folder, check=True)


def set_up(work: Path) -> None:
    """Make a home directory, a read-only folder, and a folder with links to all programs on PATH except compilers."""
    (work / "home").mkdir()
    (work / CLOSED).mkdir(mode=0o555)
    (work / WITHOUT_COMPILERS).mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = work / WITHOUT_COMPILERS / program.name
            if not _COMPILER.search(program.name) and not link.is_symlink():
                link.symlink_to(program.resolve())


def run(circumstance: Circumstance, command: Sequence[str], folder: Path, work: Path) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    done = subprocess.run(
        circumstance.command(command),
        cwd=folder,
        env=circumstance.environment(work),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="backslashreplace",
        check=False,
    )
    return done.returncode, done.stdout


def wrong_of_own_claim(name: str, harness: Sequence[str], work: Path) -> list[str]:
    """Run `COMMANDS`. Return the first that fails or warns, or a text if verdicts differ from an ordinary machine's."""
    folder = work / f"my prøject, {name}"
    documented_trainer(folder)
    wrong = []
    for command in COMMANDS:
        if command[0] == "report":
            shutil.copytree(folder / "harness-reports" / "run", folder / "copied", dirs_exist_ok=True)
            (folder / "copied" / "report.html").unlink(missing_ok=True)
        code, printed = run(CIRCUMSTANCES[name], [*harness, *command], folder, work)
        if code != 0 or re.search(r"Traceback|[Ww]arning: |Errno", printed):
            wrong.append(f"{' '.join(command)} ended with {code}:\n{printed}")
            break
    verdicts = folder / "harness-reports" / "run" / "verdicts.json"
    ordinary = work / f"my prøject, {next(iter(CIRCUMSTANCES))}" / verdicts.relative_to(folder)
    if not wrong and verdicts.read_bytes() != ordinary.read_bytes():
        wrong.append("the verdicts differ from those of an ordinary machine")
    return wrong


def installed(source: Path, work: Path) -> Path:
    """Clone the tree at HEAD, and install it with `make install` and this Python. Return the environment's path."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    code, printed = run(INSTALLATION, ["make", "install", f"PYTHON={PYTHON}"], source, work)
    if code:
        sys.exit(f"make install ended with {code}:\n{printed}")
    return source / ".venv"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--installed", type=Path, help="a virtual environment in which the harness is already installed"
    )
    parser.add_argument("--quick", action="store_true", help="skip `make verify`, `make test` and `make test-slow`")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strange-") as name:
        work = Path(name)
        set_up(work)
        source = work / "source"
        environment = (chosen.installed and chosen.installed.absolute()) or installed(source, work)
        wrong = 0
        tried = [name for name, circumstance in CIRCUMSTANCES.items() if circumstance.can_be_made()]
        for circumstance in CIRCUMSTANCES:
            if circumstance not in tried:
                print(f"{circumstance}: not tried, because this machine does not allow it", flush=True)
                continue
            found = wrong_of_own_claim(circumstance, [str(environment / "bin" / "harness")], work)
            wrong += bool(found)
            print("\n".join([f"{circumstance}: {'WRONG' if found else 'right'}", *found]), flush=True)
        targets = () if chosen.quick or chosen.installed else ("verify", "test", "test-slow")
        for target in targets:
            code, printed = run(README, ["make", target], source, work)
            wrong += bool(code)
            print(
                f"make {target}, with all circumstances except the encoding: {code}\n{printed if code else ''}",
                flush=True,
            )
        (work / CLOSED).chmod(0o755)
    counted = f"{len(tried)} of {len(CIRCUMSTANCES)} circumstances"
    print(f"{counted}{''.join(f', make {one}' for one in targets)}, {wrong} wrong, Python {platform.python_version()}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
