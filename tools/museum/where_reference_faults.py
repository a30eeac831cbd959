"""Ask what differs first between the reference trainer captured with a planted fault, and plain without one.

    python tools/museum/where_reference_faults.py --device cuda --out FOLDER [--jobs 8] [FAULT ...]

Every fault of the step, the replay and the kernels is asked for at the workload `tiny`. An answer counts as named if a
line that it gives lies in the fault's own module, or if it says what `EXPECTED` has of a fault that leaves something
out. Writes FOLDER/faults.csv, a line for each fault, and prints a summary.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0  # of one fault's process
FIELDS = ("fault", "answer", "named", "step", "part", "how", "unseen", "seconds", "bytes", "wall_s", "sentence")
# Faults that leave something out, or that change what no operator of their own module computes: what the answer says.
EXPECTED = {
    "stale_batch": r"the batch differs",
    "cross_stream_race": r"the batch differs",
    "skipped_optimizer": r"reference_impl/optimizer\.py",
    "lost_first_update": r"reference_impl/",
    "removed_clip": r"clip\.",
    "doubled_threshold": r"clip\.|max_norm",
    "global_clip": r"clip\.",
    "wrong_norm_epsilon": r"rms_norm",
    "wrong_nf4_table": r"nf4",
    "wrong_nf4_value": r"nf4",
    "swapped_gate_and_up": r"reference_impl/(block|ops|dense)\.py|swiglu",
    "wrong_lora_scale": r"reference_impl/(block|lora|ops)\.py|lora|rope",
    "wrong_rotary_base": r"rope|attention",
}
# Which settings of both arms make a module's faults differ.
SETTINGS: dict[str, dict[str, Any]] = {
    "accumulation": {"micro_batches": 2},
    "fp8": {"precision": "fp8"},
    "fp8_products": {"precision": "fp8"},
    "kernel_launches": {"gemm": "tiled"},
    "kernel_ranges": {"gemm": "tiled"},
    "kernels": {"gemm": "tiled"},
    "products": {"gemm": "tiled"},
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--one", action="store_true", help="ask for one fault in this process")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one:
        (options.out / f"{options.faults[0]}.json").write_text(json.dumps(ask(options.faults[0], options)))
        return 0
    asked = options.faults or names(options.device)
    rows = []
    with (
        (options.out / "faults.csv").open("w", encoding="utf-8", newline="") as file,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in pool.map(lambda fault: in_process(fault, options), asked):
            rows.append(row)
            writer.writerow(row)
            file.flush()
    counts = Counter((str(row["answer"]), str(row["named"])) for row in rows)
    for (answer, named), count in sorted(counts.items()):
        print(f"{count:4d} {answer}, named: {named}")
    return 0


def names(device: str) -> list[str]:
    """Return the faults of the step, the replay and the kernels that can be planted in a training on the device."""
    from reference_impl.faults import FAULTS, KERNELS, REPLAY, STEP

    hooks = (STEP, REPLAY, KERNELS)
    known = [(name, fault) for name, fault in FAULTS.items() if fault.hook in hooks]
    return [name for name, fault in known if device == "cuda" or fault.description.needs == "any"]


def in_process(fault: str, options: argparse.Namespace) -> dict[str, object]:
    """Return the row of a fault, which a process of its own asked for: a fault may end its process."""
    began, out = time.monotonic(), options.out
    command = [sys.executable, __file__, "--one", "--device", options.device, "--model", options.model]
    command += ["--seq-len", str(options.seq_len), "--out", str((out / "answers").resolve()), fault]
    few = {**os.environ, "OMP_NUM_THREADS": "1"}  # other faults are asked for at the same time
    log = out / "logs" / f"{fault}.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        try:
            subprocess.run(command, stdout=file, stderr=file, timeout=LIMIT_S, check=False, cwd=ROOT, env=few)
            ended = "its process ended without an answer"
        except subprocess.TimeoutExpired:
            ended = f"still running after {LIMIT_S:g} s"
    answer = out / "answers" / f"{fault}.json"
    row = json.loads(answer.read_text()) if answer.is_file() else {"answer": "none", "sentence": ended}
    row = {"fault": fault, "named": "", **row, "wall_s": round(time.monotonic() - began, 1)}
    print(f"{fault}: {row['answer']} {row.get('named', '')} {row['sentence']}", flush=True)
    return row


def ask(fault: str, options: argparse.Namespace) -> dict[str, object]:
    """Return the answer for a fault, as a row without the seconds of the process."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
    os.chdir(ROOT)
    from claims_in_process import executed
    from reference_where import run_of_reference

    from harness.api.where import locate
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
        **SETTINGS.get(module, {}),
    )
    with tempfile.TemporaryDirectory(prefix="where-") as folder:
        number = iter(range(9))

        def execute(run: Run) -> Sequence[RunEvidence]:
            return [executed(run, Path(folder) / str(next(number)))]

        answer = locate(run, execute)
    sentence = located(answer)
    lines = [line for place in answer.places.values() for line in (place.line, *place.made_at)] + answer.between
    is_named = any(f"reference_impl/faults/{module}.py" in line for line in lines)
    expected = EXPECTED.get(fault)
    return {
        "answer": answer.found,
        "named": is_named or (expected is not None and re.search(expected, sentence) is not None),
        **{name: getattr(answer, name) for name in ("step", "part", "how", "unseen", "bytes")},
        "seconds": None if answer.seconds is None else round(answer.seconds, 2),
        "sentence": sentence,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
