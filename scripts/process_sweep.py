"""Signals at many moments of each command's start, and parents killed at moments of a run's first second.

    python scripts/process_sweep.py [--moments 50] [--parents 100]

Prints, by command and signal, how often each exit code was seen; then how many processes outlived a killed parent by
two seconds. The last line sums up; the exit code is 1 when a code is not the table's, or a process was left.
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
    "check": ("check", CONTRACT),
    "verify --gate": ("verify", CONTRACT, "--gate", "--reports"),
    "doctor": ("doctor", CONTRACT),
    "drill": ("drill", CONTRACT, "--reports"),
}
ALLOWED = {signal.SIGINT: {130}, signal.SIGTERM: {143}, signal.SIGHUP: {143, 129}}  # 129: before our first line
MARK = "PROCESS_SWEEP"
LEFT_S = 2.0


def start(command: tuple[str, ...], folder: str, **variables: str) -> subprocess.Popen[bytes]:
    words = [*command, folder] if command[-1] == "--reports" else [*command]
    nothing = subprocess.DEVNULL
    environment = {**os.environ, **variables}
    command_line = [sys.executable, "-m", "harness", *words]
    return subprocess.Popen(command_line, cwd=ROOT, stdout=nothing, stderr=nothing, env=environment)


def signalled(command: tuple[str, ...], number: signal.Signals, moments: int, longest_s: float) -> Counter[int | str]:
    """Exit codes as a shell has them, of a signal at `moments` times from 0 to `longest_s`."""
    codes: Counter[int | str] = Counter()
    for moment in range(moments):
        with tempfile.TemporaryDirectory() as folder:
            process = start(command, folder)
            time.sleep(longest_s * moment / moments)
            if process.poll() is not None:
                codes["ended before"] += 1
                continue
            process.send_signal(number)
            code = process.wait(60)
            codes[code if code >= 0 else 128 - code] += 1
    return codes


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
            process = start(("verify", CONTRACT, "--reports"), folder, **{MARK: mark})
            _await_worker(process, mark)
            time.sleep(number / parents)
            process.kill()
            process.wait()
            time.sleep(LEFT_S)
            processes = marked(mark)
            print(f"killed {number / parents:.2f} s after its first worker began: {len(processes)} left", flush=True)
            left_of, left = left_of + bool(processes), left + len(processes)
            for each in processes:
                os.kill(each, signal.SIGKILL)
    return left_of, left


def _await_worker(process: subprocess.Popen[bytes], mark: str) -> None:
    while not any(b"harness.runners.worker" in _command_line(each) for each in marked(mark)):
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
    wrong = 0
    for name, command in COMMANDS.items() if options.moments else ():
        for number, allowed in ALLOWED.items():
            codes = signalled(command, number, options.moments, options.longest)
            wrong += sum(times for code, times in codes.items() if code not in {*allowed, "ended before"})
            seen = ", ".join(f"{code}: {times}" for code, times in sorted(codes.items(), key=str))
            print(f"{name:14} {number.name:8} {seen}", flush=True)
    left_of, left = outlived(options.parents)
    sent = options.moments * len(COMMANDS) * len(ALLOWED)
    print(f"{sent} signals, {wrong} other codes; {options.parents} parents killed, {left_of} left {left} processes")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
