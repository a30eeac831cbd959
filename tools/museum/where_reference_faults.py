"""Ask what differs first between the reference trainer captured with a planted fault, and plain without one.

    python tools/museum/where_reference_faults.py --device cuda --out FOLDER [--jobs 8] [FAULT ...]

Every fault of the step, the replay and the kernels is asked for at the workload `tiny`. An answer counts as named if a
line that it gives lies in the fault's own module, or if it says what `EXPECTED` has of a fault that leaves something
out or changes a number: a reader wrote that down. Writes FOLDER/faults.csv, a line for each fault; FOLDER/answers with
each answer in full; FOLDER/evidence with what was recorded where an answer names another module. Prints a summary.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Self

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
LIMIT_S = 200.0  # for one fault
FIELDS = ("fault", "answer", "named", "step", "part", "how", "unseen", "seconds", "bytes", "wall_s", "sentence")
# Faults that leave something out, or that change what no operator of their own module computes: what the answer says.
EXPECTED = {
    "stale_batch": r"the batch differs",
    "cross_stream_race": r"the batch differs",
    "skipped_optimizer": r"reference_impl/optimizer\.py",
    "lost_first_update": r"reference_impl/",
    "removed_clip": r"made in arm `plain` at [^;]*kernels/clip",
    "doubled_threshold": r"max_norm=0\.2, in arm `plain` max_norm=0\.1",
    "global_clip": r"kernels/clip",
    "clip_without_epsilon": r"eps=0\.0",
    "norm_without_epsilon": r"eps=0\.0",
    "norm_other_epsilon": r"eps=1e-05",
    "rotated_values": r"rope",
    "fp8_stale_scale": r"_scaled_mm",
    "unheeded_precision": r"rms_norm/kernel.* in arm `plain` at [^;]*fp8_norm",
    "empty_capture": r"made in arm `plain` at",
    "hollow_capture": r"made in arm `plain` at",
    "forward_only_capture": r"gradient layers\S+ is not written",
    "moved_buffer": r"aten\.embedding",
    "one_replayed_micro_batch": r"aten\.embedding",
    "repeated_micro_batch": r"aten\.embedding",
    "overwritten_gradients": r"made in arm `plain` at [^;]*reference_impl/accumulation\.py",
    "update_at_every_micro_batch": r"made here at [^;]*reference_impl/optimizer\.py",
    "wrong_norm_epsilon": r"rms_norm",
    "wrong_nf4_table": r"nf4",
    "wrong_nf4_value": r"nf4",
    "swapped_gate_and_up": r"reference_impl/(block|ops|dense)\.py|swiglu",
    "wrong_lora_scale": r"reference_impl/(block|lora|ops)\.py|lora|rope",
    "wrong_rotary_base": r"rope|attention",
    "ignored_seed": r"the batch differs",
    "seed_without_batches": r"the batch differs",
    "seed_without_start": r"the state before the step differs \(parameters",
}
# Which settings of both arms make a fault, or a module's faults, differ.
SETTINGS: dict[str, dict[str, Any]] = {
    "accumulation": {"micro_batches": 2},
    "fp8": {"precision": "fp8"},
    "fp8_products": {"precision": "fp8"},
    "kernel_launches": {"gemm": "tiled"},
    "kernel_ranges": {"gemm": "tiled"},
    "kernels": {"gemm": "tiled"},
    "products": {"gemm": "tiled"},
    "unheeded_adapters": {"adapters": False},
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--serve", action="store_true", help="ask for each fault that standard input names")
    options = parser.parse_args(arguments)
    if options.serve:
        return serve(options)
    asked = options.faults or names(options.device)
    (options.out / "answers").mkdir(parents=True, exist_ok=True)
    waiting, counts = iter(asked), Counter[tuple[str, str]]()
    with (options.out / "faults.csv").open("w", encoding="utf-8", newline="") as file:
        writer, lock = csv.DictWriter(file, FIELDS, extrasaction="ignore"), Lock()
        writer.writeheader()

        def work(number: int) -> None:
            with Worker(options, number) as worker:
                while True:
                    with lock:
                        fault = next(waiting, None)
                    if fault is None:
                        return
                    row = worker.ask(fault)
                    with lock:
                        counts[str(row["answer"]), str(row["named"])] += 1
                        writer.writerow(row)
                        file.flush()
                    print(f"{fault}: {row['answer']} {row['named']} {row['sentence']}", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            [*pool.map(work, range(options.jobs))]
    for (answer, named), count in sorted(counts.items()):
        print(f"{count:4d} {answer}, named: {named}")
    return 0


class Worker:
    """A process that is asked for one fault after the other, and started anew where one ended it or took too long."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self._log = (options.out / f"worker{number}.log").open("w", encoding="utf-8")
        self._out = options.out
        self._command = [sys.executable, __file__, "--serve", "--device", options.device, "--model", options.model]
        self._command += ["--seq-len", str(options.seq_len), "--out", str(options.out.resolve())]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._end()
        self._log.close()

    def ask(self, fault: str) -> dict[str, object]:
        """Return the row of a fault."""
        began, process = time.monotonic(), self._started()
        timer = Timer(LIMIT_S, process.kill)
        timer.start()
        process.stdin.write(f"{fault}\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        answered = process.stdout.readline()  # type: ignore[union-attr]
        timer.cancel()
        file = self._out / "answers" / f"{fault}.json"
        row: dict[str, object] = {"answer": "none", "sentence": "its process ended, or took too long"}
        if answered and file.is_file():
            row = json.loads(file.read_text(encoding="utf-8"))
        if row["answer"] in ("none", "not_seen"):  # what ended it may have harmed the process
            self._end()
        return {"fault": fault, "named": "", **row, "wall_s": round(time.monotonic() - began, 1)}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            few = {**os.environ, "OMP_NUM_THREADS": "1"}  # other faults are asked for at the same time
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=ROOT,
                env=few,
                text=True,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def serve(options: argparse.Namespace) -> int:
    """Answer for each fault that is read, in a file, and write its name once the file is there."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what else is printed goes to the log
    for line in sys.stdin:
        fault = line.strip()
        try:
            row = ask(fault, options)
        except Exception:
            row = {"answer": "none", "sentence": traceback.format_exc()[-500:]}
        (options.out / "answers" / f"{fault}.json").write_text(json.dumps(row), encoding="utf-8")
        print(fault, file=answers, flush=True)
    return 0


def names(device: str) -> list[str]:
    """Return the faults of the step, the replay and the kernels that can be planted in a training on the device."""
    from reference_impl.faults import FAULTS, KERNELS, REPLAY, STEP

    hooks = (STEP, REPLAY, KERNELS)
    known = [(name, fault) for name, fault in FAULTS.items() if fault.hook in hooks]
    return [name for name, fault in known if device == "cuda" or fault.description.needs == "any"]


def ask(fault: str, options: argparse.Namespace) -> dict[str, object]:
    """Return the answer for a fault, as a row without the seconds of the process."""
    from claims_in_process import executed
    from reference_where import run_of_reference

    from harness.api.first_difference import locate
    from harness.evidence.plan_records import Run
    from harness.evidence.run_evidence import RunEvidence
    from harness.report.located import located
    from reference_impl.faults import FAULTS

    module = FAULTS[fault].change.__module__.rpartition(".")[2]
    run = run_of_reference(
        options.device,
        fault,
        model=options.model,
        seq_len=options.seq_len,
        limit_s=LIMIT_S,
        **SETTINGS.get(fault, SETTINGS.get(module, {})),
    )
    with tempfile.TemporaryDirectory(prefix="where-") as folder:
        number = iter(range(9))

        def execute(run: Run) -> Sequence[RunEvidence]:
            return [executed(run, Path(folder) / str(next(number)))]

        answer = locate(run, execute)
        sentence = located(answer)
        lines = [line for place in answer.places.values() for line in (place.line, *place.made_at)] + answer.between
        is_named = any(f"reference_impl/faults/{module}.py" in line for line in lines)
        if answer.found == "found" and not is_named:  # to be read
            shutil.copytree(folder, options.out / "evidence" / fault)
    expected = EXPECTED.get(fault)
    return {
        "answer": answer.found,
        "named": is_named or (expected is not None and re.search(expected, sentence) is not None),
        **{name: getattr(answer, name) for name in ("step", "part", "how", "unseen", "bytes")},
        "seconds": None if answer.seconds is None else round(answer.seconds, 2),
        "sentence": sentence,
        "in_full": answer.model_dump(mode="json"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
