"""The behaviours of workers under test: some write evidence, most misbehave. No torch, so that workers start fast."""

import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lost_streams import STREAMS
from process_table import state
from sockets import write_to_sockets
from waiting import eventually

from harness.evidence.arm_records import ArmEnd, ArmStart
from harness.evidence.plan_records import Run
from harness.execution.recorder import Recorder, StepRows
from harness.system.protocol import NotAvailable


def one_arm(run: Run, recorder: Recorder) -> None:
    recorder.phase("arm plain")
    digests = {"trainable_digest": "a0", "frozen_digest": "f0"}
    recorder.write(ArmStart(arm="plain", replica=0, trainable_tensors=2, facts={"layers": 1}, **digests))
    series = recorder.series("plain", 0)
    series.rows(StepRows([0, 1], [2.5, 0.1 + 0.2], ["b0", "b1"], [1, -1], [64, 64]))
    series.rows(StepRows([2], [float("nan")], ["b2"], [0], [64]))
    recorder.write(ArmEnd(arm="plain", replica=0, skipped_steps=0, steps_called=3, **digests))


def edits_its_records(run: Run, recorder: Recorder) -> None:
    """Train, then replace `old` by `new` in the recorded file `name`, as the settings say."""
    one_arm(run, recorder)
    path = recorder.directory / str(run.settings["name"])
    before = path.read_text()
    path.write_text(before.replace(str(run.settings["old"]), str(run.settings["new"])))


def killed(run: Run, recorder: Recorder) -> None:
    """Die by the signal in the settings, or by SIGKILL."""
    recorder.phase("about to be killed")
    number = run.settings.get("number")
    os.kill(os.getpid(), number if isinstance(number, int) else signal.SIGKILL)
    signal.pause()


def crashes(run: Run, recorder: Recorder) -> None:
    import ctypes

    recorder.phase("native code")
    ctypes.string_at(0)


def hangs(run: Run, recorder: Recorder) -> None:
    recorder.phase("hanging")
    _wait_for_ever()


def _wait_for_ever() -> None:
    time.sleep(600)


def ticks(run: Run, recorder: Recorder) -> None:
    """Append this process and the time to a file until another file exists."""
    moments = Path(str(run.settings["moments"]))
    recorder.phase("ticking")
    while not Path(str(run.settings["until"])).exists():
        with moments.open("a") as file:
            file.write(f"{os.getpid()} {time.monotonic()}\n")
        recorder.heartbeat()
        time.sleep(0.005)


def measures_alone(run: Run, recorder: Recorder) -> None:
    """Measure alone while another run, which ticks, is stopped. Write the number of its ticks at the start and the end.

    Numbers are compared and not times, because two processes' monotonic clocks differ by milliseconds on some hosts.
    """
    moments = Path(str(run.settings["moments"]))
    eventually(lambda: moments.exists() and "\n" in moments.read_text(), "the other one ticks")
    ticking = int(moments.read_text().split()[0])
    with recorder.alone():
        recorder.phase("measuring")
        eventually(lambda: state(ticking) == "T", "the other one is stopped")
        at_first = len(moments.read_text())
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 0.05, "ten ticks of a process that runs could have come")
        at_last = len(moments.read_text())
    recorder.phase("measured")
    eventually(lambda: len(moments.read_text()) > at_last, "the other one ticks again")
    Path(str(run.settings["until"])).write_text(f"{at_first} {at_last}")


def dies_alone(run: Run, recorder: Recorder) -> None:
    """Die while it has the machine to itself."""
    with recorder.alone():
        os.kill(os.getpid(), signal.SIGKILL)


def dies_as_it_waits(run: Run, recorder: Recorder) -> None:
    """Die while it waits for other processes to be stopped, as on a device whose kernels fail."""
    recorder.phase("plain.0: steps")
    vars(sys.modules[Recorder.__module__])["wait_for_quiet_device"] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    with recorder.alone():
        pass


def hangs_deaf(run: Run, recorder: Recorder) -> None:
    recorder.phase("deaf")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    time.sleep(600)


def busy(run: Run, recorder: Recorder) -> None:
    recorder.phase("busy")
    while True:
        recorder.heartbeat()
        time.sleep(0.05)


def exits_early(run: Run, recorder: Recorder) -> None:
    recorder.phase("half way")
    os._exit(0)


def exits_with_three(run: Run, recorder: Recorder) -> None:
    recorder.phase("half way")
    os._exit(3)


def fills_the_disk(run: Run, recorder: Recorder) -> None:
    recorder.phase("disk full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    recorder.phase("another")


def removes_its_directory_at_once(run: Run, recorder: Recorder) -> None:
    recorder.phase("there")
    recorder.phase("here")
    shutil.rmtree(recorder.directory)


def prints_100_mb(run: Run, recorder: Recorder) -> None:
    recorder.phase("printing")
    line = "x" * 99 + "\n"
    for _ in range(100):
        sys.stdout.write(line * 10_000)


def import_fails(run: Run, recorder: Recorder) -> None:
    recorder.phase("open the system")
    importlib.import_module("import_fails")


def fails_in_a_step(run: Run, recorder: Recorder) -> None:
    one_arm(run, recorder)
    recorder.phase("arm graphed")
    raise ValueError("step 7 broke \udcff")


def leaves_by_system_exit(run: Run, recorder: Recorder) -> None:
    recorder.phase("arm plain")
    raise SystemExit(0)


def drips(run: Run, recorder: Recorder) -> None:
    """Send one byte after the other to the supervisor, without end."""
    recorder.phase("dripping")
    while True:
        write_to_sockets(b".")
        time.sleep(0.02)


def floods(run: Run, recorder: Recorder) -> None:
    """Send data to the supervisor without end, as fast as it is read."""
    recorder.phase("flooding")
    while True:
        write_to_sockets(b"x" * 2**16)


def asks_and_asks(run: Run, recorder: Recorder) -> None:
    """Request to run alone twice, then together many times, without reading the answers; then hang."""
    recorder.phase("asking")
    write_to_sockets(b"alone\nalone\n")
    write_to_sockets(b"together\n" * 2000)
    recorder.phase("hanging")
    _wait_for_ever()


def writes_garbage(run: Run, recorder: Recorder) -> None:
    recorder.phase("scribbling")
    with (recorder.directory / "records.jsonl").open("a") as records:
        records.write('{"record": "no such thing"}\n')


def not_available(run: Run, recorder: Recorder) -> None:
    recorder.phase("open the system")
    raise NotAvailable("needs the package `peft`")


def loses_streams(run: Run, recorder: Recorder) -> None:
    """Replace or close standard streams, and then write the evidence of one arm."""
    for name in str(run.settings["streams"]).split():
        if run.settings["left"] == "closed itself":
            getattr(sys, name).close()
        else:
            setattr(sys, name, STREAMS[str(run.settings["left"])]())
    one_arm(run, recorder)


def leaves_children(run: Run, recorder: Recorder) -> None:
    """Start a child in the worker's group and one in its own session, and write their ids to a file."""
    recorder.phase("starting children")
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    Path(str(run.settings["children"])).write_text("".join(f"{child.pid}\n" for child in children))
    recorder.phase("children run")
    if run.settings.get("then_hang"):
        _wait_for_ever()


def shows_environment(run: Run, recorder: Recorder) -> None:
    recorder.phase("environment")
    names = ("OMP_WAIT_POLICY", "PYTHONHASHSEED")
    shown = [*(f"{name}={os.environ[name]}" for name in names), f"leader={os.getsid(0) == os.getpid()}"]
    sys.stdout.write(" ".join(shown) + "\n")


def takes_away(run: Run, recorder: Recorder) -> None:
    """Damage its own directory, or one above it, as the settings say; then continue, or exit."""
    recorder.phase("taking away")
    TAKEN[str(run.settings["what"])](recorder.directory)
    if run.settings.get("then_complete"):
        os._exit(0)
    one_arm(run, recorder)


def _moved(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def _replaced(directory: Path, by: Callable[[Path], object]) -> None:
    shutil.rmtree(directory)
    by(directory)


def _emptied(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def _with(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def put(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        make(directory / name)

    return put


TAKEN: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "moved": _moved,
    "all runs removed": lambda directory: shutil.rmtree(directory.parent),
    "everything removed": lambda directory: shutil.rmtree(directory.parents[1]),
    "a file": lambda directory: _replaced(directory, Path.touch),
    "a link to nothing": lambda directory: _replaced(directory, lambda path: path.symlink_to("nowhere")),
    "a link to a folder": lambda directory: _replaced(directory, lambda path: path.symlink_to(path.parents[2])),
    "a link to itself": lambda directory: _replaced(directory, lambda path: path.symlink_to(path)),
    "a pipe": lambda directory: _replaced(directory, os.mkfifo),
    "a file in place of all runs": lambda directory: _replaced(directory.parent, Path.touch),
    "emptied": _emptied,
    "closed": lambda directory: directory.chmod(0),
    "a pipe as its output": _with("stderr.txt", os.mkfifo),
    "a folder as its death": _with("death.json", Path.mkdir),
    "a link as its death": _with("death.json", lambda path: path.symlink_to("/dev/full")),
    "a pipe as its heartbeat": _with("heartbeat", os.mkfifo),
    "a folder as its stack": _with("stack.txt", Path.mkdir),
    "a pipe as its records": _with("records.jsonl", os.mkfifo),
    "a folder as its run": _with("run.json", Path.mkdir),
    "a folder as its times": _with("process.json", Path.mkdir),
}


def compiles_elsewhere(run: Run, recorder: Recorder) -> None:
    """Wait for a child with the name in the settings, which works until a file exists, or sleeps if `idle`."""
    recorder.phase("waiting for a child")
    child = Path(str(run.settings["folder"])) / str(run.settings["name"])
    busy = "while [ ! -e $1/compiled ]; do :; done"
    child.write_text(f"#!/bin/sh\n{'sleep 600' if run.settings.get('idle') else busy}\n")
    child.chmod(0o755)
    subprocess.run([child, child.parent], check=True)
    recorder.phase("compiled")
    one_arm(run, recorder)


def compiles_here(run: Run, recorder: Recorder) -> None:
    """Spin or sleep in a function of a file with the name in the settings, until `folder` has a file."""
    recorder.phase("within a function")
    source = "import time\ndef work(until, spins):\n    while not until.exists():\n        spins or time.sleep(0.01)\n"
    names: dict[str, Callable[[Path, bool], None]] = {}
    exec(compile(source, str(run.settings["file"]), "exec"), names)  # noqa: S102 - this source
    names["work"](Path(str(run.settings["folder"])) / "compiled", bool(run.settings["spins"]))
    recorder.phase("compiled")
    one_arm(run, recorder)
