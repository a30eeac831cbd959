"""Signals at many moments of each command's start, and parents killed at moments of a run's first second.

    python scripts/process_sweep.py [--moments 50] [--parents 100]

Prints, by command and signal, how often each exit code was seen; then how many processes outlived a killed parent by
two seconds. The last line sums up; the exit code is 1 when a code is not the table's, or a process was left.

Before the first line of the harness SIGINT meets Python's own start, which ends with 1 where it cannot go on, and may
swallow it in a callback of its import system: the command then knows of no signal. Such codes count as `Python's` only
where what was printed says so, and names no file of the harness.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTRACT = "contracts/traced-step-v1.yaml"  # runs without a GPU
COMMANDS = {
    "check": ("harness", "check", CONTRACT),
    "verify --gate": ("harness", "verify", CONTRACT, "--gate", "--reports"),
    "doctor": ("harness", "doctor", CONTRACT),
    "drill": ("harness", "drill", CONTRACT, "--reports"),
    "pytest": ("pytest", "-p", "no:cacheprovider", CONTRACT, "--contract-reports"),
}
ALLOWED = {signal.SIGINT: {130}, signal.SIGTERM: {143}, signal.SIGHUP: {143, 129}}  # 129: before our first line
PYTEST_ALLOWED = {signal.SIGINT: {130, 2}, signal.SIGTERM: {143}, signal.SIGHUP: {129}}  # 2: pytest was interrupted
OWN_FILES = (f"{ROOT}/harness/", f"{ROOT}/reference_impl/")
MARK = "PROCESS_SWEEP"
LEFT_S = 2.0


def start(command: tuple[str, ...], folder: str, **variables: str) -> subprocess.Popen[bytes]:
    """The command, whose report goes into `folder`, and what it prints on stderr into a file there."""
    words = [*command, f"{folder}/reports"] if command[-1].endswith("reports") else [*command]
    environment = {**os.environ, **variables}
    with Path(folder, "stderr").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )


def signalled(
    command: tuple[str, ...], number: signal.Signals, moments: int, longest_s: float
) -> tuple[Counter[int | str], int]:
    """Exit codes as a shell has them, of a signal at `moments` times from 0 to `longest_s`; processes left."""
    codes: Counter[int | str] = Counter()
    left = 0
    for moment in range(moments):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            mark = f"{os.getpid()}-{number}-{moment}"
            process = start(command, folder, **{MARK: mark})
            time.sleep(longest_s * moment / moments)
            if process.poll() is not None:
                codes["ended before"] += 1
                continue
            process.send_signal(number)
            code = process.wait(60)
            printed = Path(folder, "stderr").read_text(encoding="utf-8", errors="replace")
            codes[f"{code} (Python's)" if is_pythons(code, number, printed) else code if code >= 0 else 128 - code] += 1
            left += len(left_after(mark))
    return codes, left


def is_pythons(code: int, number: signal.Signals, printed: str) -> bool:
    """Whether Python's own start met SIGINT, by what it printed: it failed, or ignored the exception."""
    said = "KeyboardInterrupt" in printed and (code == 1 or (code == 0 and "Exception ignored in" in printed))
    return number is signal.SIGINT and said and not any(file in printed for file in OWN_FILES)


def left_after(mark: str) -> list[int]:
    """Processes with the mark that are there for two seconds; they are killed."""
    until = time.monotonic() + LEFT_S
    while (processes := marked(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    for each in processes:
        os.kill(each, signal.SIGKILL)
    return processes


def marked(mark: str) -> list[int]:
    """Processes whose environment has the mark, and that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def outlived(parents: int) -> tuple[int, int]:
    """Of how many killed parents processes were left after two seconds; how many processes.

    A parent is killed up to a second after its first worker has started.
    """
    left_of, left = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(parents):
            mark = f"{os.getpid()}-{number}"
            process = start(("harness", "verify", CONTRACT, "--reports"), folder, **{MARK: mark})
            await_worker(process, mark)
            time.sleep(number / parents)
            process.kill()
            process.wait()
            processes = left_after(mark)
            print(f"killed {number / parents:.2f} s after its first worker began: {len(processes)} left", flush=True)
            left_of, left = left_of + bool(processes), left + len(processes)
    return left_of, left


def await_worker(process: subprocess.Popen[bytes], mark: str) -> None:
    while not any(b"harness.execution.worker" in _command_line(each) for each in marked(mark)):
        if process.poll() is not None:
            raise RuntimeError(f"{CONTRACT} started no worker here")
        time.sleep(0.002)


def _command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50, help="of each command and signal")
    parser.add_argument("--longest", type=float, default=1.0, metavar="SECONDS", help="the latest of them")
    parser.add_argument("--parents", type=int, default=100)
    options = parser.parse_args()
    for number in ALLOWED:  # a shell's background job ignores SIGINT, and what is ignored stays so
        signal.signal(number, signal.SIG_DFL)
    wrong = kept = 0
    for name, command in COMMANDS.items() if options.moments else ():
        for number, allowed in (PYTEST_ALLOWED if name == "pytest" else ALLOWED).items():
            longest = options.longest * (4 if name == "pytest" else 1)  # it collects for a second or two
            codes, after = signalled(command, number, options.moments, longest)
            kept += after
            wrong += sum(times for code, times in codes.items() if isinstance(code, int) and code not in allowed)
            seen = ", ".join(f"{code}: {times}" for code, times in sorted(codes.items(), key=str))
            print(f"{name:14} {number.name:8} {seen}", flush=True)
    left_of, left = outlived(options.parents)
    sent = options.moments * len(COMMANDS) * len(ALLOWED)
    print(f"{sent} signals, {wrong} other codes, {kept} processes left; ", end="")
    print(f"{options.parents} parents killed, {left_of} left {left} processes")
    return 1 if wrong or kept or left else 0


if __name__ == "__main__":
    sys.exit(main())
