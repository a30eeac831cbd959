"""Kill `harness verify`, `harness drill` and pytest at random moments of each phase, then judge the run directories.

python tools/long_checks/random_kills.py [--kills 300] [--seed 17]

For each kill, the script starts a command and waits until one of its phases begins, and then for a random part of the
time that this phase usually takes. It then sends one or two signals. The exit code is 1 if a gate is open for an
unfinished run, if a process still runs 2 seconds after its command has ended, or if a command does not end.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from marked_processes import left_after, marked

from harness.cli.application import application
from harness.errors import HarnessError
from harness.evidence import layout

ROOT = Path(__file__).parents[2]
SCRIPTED = ROOT / "tests" / "support" / "scripted"
MARK = "RANDOM_KILLS"
PHASES = ("start", "describe", "plan", "runs", "judge", "pages", "seal")
COMMANDS = {
    "verify": ("harness", "verify", "gate.yaml", "--gate", "--name", "run", "--reports"),
    "drill": ("harness", "drill", "gate.yaml", "--name", "run", "--reports"),
    "pytest": ("pytest", "-q", "gate.yaml", "--contract-gate", "--contract-reports"),
}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
LIMIT_S = 40.0  # seconds after which a command counts as not ended; it should end within 10 s after a signal
LEFT_S = 2.0
PASS_S = 0.001


@dataclass
class Command:
    """One running command. `phase` returns its current phase. The phases occur in a fixed order, each once."""

    name: str
    folder: Path
    mark: str
    process: subprocess.Popen[bytes] = field(init=False)
    described: bool = False
    # Ids of processes without the mark of this command. They are not examined again, which saves processor time.
    others: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        environment = {**os.environ, MARK: self.mark.partition("=")[2], "PYTHONPATH": f"{SCRIPTED}:{ROOT}"}
        command = [sys.executable, "-m", *COMMANDS[self.name], str(self.folder / "reports")]
        nothing = subprocess.DEVNULL
        self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=nothing, stderr=nothing)

    def phase(self) -> str:
        if self.process.poll() is not None:
            return "ended"
        directories = list(self.directories())
        if not directories:
            describing = any("harness.system.describing" in line for line in self.command_lines())
            self.described = self.described or describing
            return "describe" if describing else "plan" if self.described else "start"
        [directory] = directories
        if "incomplete" not in directory.name or (directory / layout.MANIFEST).exists():
            return "seal"
        if (directory / layout.VERDICTS).exists():
            return "pages"
        working = any("harness.execution.worker" in line for line in self.command_lines())
        return "runs" if working or not any(directory.glob("evidence/**/process.json")) else "judge"

    def directories(self) -> Iterator[Path]:
        reports = self.folder / "reports"
        yield from (path for path in reports.iterdir() if path.is_dir()) if reports.is_dir() else ()

    def command_lines(self) -> Iterator[str]:
        for process in marked(self.mark, self.others):
            try:
                yield Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue


def prepare(folder: Path) -> None:
    """Write a contract whose claims hold, and whose only planted fault is killed (found by its claim)."""
    with patch.object(
        sys, "path", [str(SCRIPTED), *sys.path]
    ):  # not for workers: with the folder SCRIPTED on its path, a worker would import another probe
        from scripted_system import contract_text
    text = contract_text("held").replace(":ScriptedSystem", ":FaultySystem").replace("nan_tail", "fault")
    (folder / "gate.yaml").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\ncontract_paths = .\n")


def unkilled(name: str) -> tuple[dict[str, float], bytes]:
    """Run a command without killing it. Return the seconds of each phase, and the bytes of its verdicts."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        prepare(folder)
        command = Command(name, folder, f"{MARK}={os.getpid()}-{name}")
        seconds: Counter[str] = Counter()
        last = time.monotonic()
        while (phase := command.phase()) != "ended":
            now = time.monotonic()
            seconds[phase] += now - last  # type: ignore[assignment]
            last = now
            time.sleep(PASS_S)
        if command.process.returncode != 0:
            raise RuntimeError(f"{name} failed with exit code {command.process.returncode}, although it was not killed")
        [directory] = command.directories()
        return dict(seconds), (directory / layout.VERDICTS).read_bytes()


def kill(
    name: str, phase: str, sent: tuple[signal.Signals, ...], wait_s: float, expected: bytes
) -> tuple[str, list[str]]:
    """Start a command, and kill it `wait_s` seconds after `phase` began, with the signals `sent`. Return the phase in
    which the command was killed, and a list of what is wrong with the result."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        prepare(folder)
        command = Command(name, folder, f"{MARK}={os.getpid()}-{time.monotonic_ns()}")
        problems = []
        try:
            while (now := command.phase()) != "ended" and PHASES.index(now) < PHASES.index(phase):
                time.sleep(PASS_S)
            time.sleep(wait_s)
            now = command.phase()
            for number, each in enumerate(sent):
                time.sleep(0.05 * number)
                command.process.send_signal(each)
            command.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            problems.append(f"the command did not end within {LIMIT_S:g} s")
        finally:
            command.process.kill()
            command.process.wait()
        left = left_after(command.mark, LEFT_S)
        problems += [f"{len(left)} processes left"] * bool(left)
        problems += [
            text
            for directory in command.directories()
            for text in accepted(directory, expected, drilled=name == "drill")
        ]
        return now, problems


def accepted(directory: Path, expected: bytes, *, drilled: bool) -> list[str]:
    """Return a list with a problem if `judge` exits with 0 for a run that is unfinished or lacks evidence."""
    arguments = ["judge", *([] if drilled else ["--gate"]), str(directory)]  # --gate refuses drills
    printed, code = StringIO(), 1
    with redirect_stdout(printed), redirect_stderr(printed), suppress(HarnessError):
        code = application(arguments)(arguments, standalone_mode=False)
    if code != 0:
        return []
    records = [path.read_text().splitlines()[-1] for path in directory.glob("evidence/**/records.jsonl")]
    sealed = (directory / layout.MANIFEST).exists() and (directory / layout.VERDICTS).read_bytes() == expected
    whole = sealed and bool(records) and all('"record":"complete"' in record for record in records)
    return [] if whole else [f"the gate is open for {directory.name}, whose run did not finish"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=17)
    options = parser.parse_args()
    return killed(options.kills, random.Random(options.seed))


def killed(kills: int, choice: random.Random) -> int:
    """Kill `kills` commands, and print a line for each and a summary. Return the exit code."""
    # Restore the default handlers. A shell's `&` and nohup make commands ignore SIGINT or SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    lengths = {name: unkilled(name) for name in COMMANDS}
    for name, (seconds, _) in lengths.items():
        print(f"{name:8}", "  ".join(f"{phase} {seconds.get(phase, 0.0):.2f} s" for phase in PHASES), flush=True)
    seen: Counter[str] = Counter()
    sent_how_often: Counter[str] = Counter()
    wrong = 0
    for number in range(kills):
        name = list(COMMANDS)[number % len(COMMANDS)]
        phase = PHASES[number // len(COMMANDS) % len(PHASES)]
        first = choice.choice(SIGNALS)
        sent = (first, choice.choice(SIGNALS)) if choice.random() < 0.25 else (first,)
        seconds, expected = lengths[name]
        killed_in, problems = kill(name, phase, sent, choice.uniform(0.0, seconds.get(phase, 0.0)), expected)
        seen[killed_in] += 1
        sent_how_often["+".join(each.name for each in sent) if len(sent) == 1 else "twice"] += 1
        wrong += bool(problems)
        sent_names = " and ".join(each.name for each in sent)
        print(f"{number + 1:3} {name} in {killed_in}, {sent_names}: {'; '.join(problems) or 'held'}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in sorted(sent_how_often.items())))
    by_phase = ", ".join(f"{phase} {seen[phase]}" for phase in (*PHASES, "ended"))
    print(f"{kills} kills, {wrong} wrong; in {by_phase}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
