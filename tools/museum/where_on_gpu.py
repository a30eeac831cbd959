"""Find the first difference between the captured reference trainer with a fault and the plain trainer.

    python tools/museum/where_on_gpu.py FOLDER [FAULT ...] [--device cpu] [--model tiny] [--seq-len 64]

Without FAULT, every fault of the step, the replay and the kernels is examined, each in a fork. The answer (a place)
counts as right ("named") if it names a line in the fault's module. Some faults only leave something out or change a
number, so no line of their module computes anything. For these faults, the answer must match a pattern in `EXPECTED`,
which was written by hand. The results are in FOLDER/faults.csv with a row for each fault, and FOLDER/answers. If an
answer names another module, the recordings are kept in FOLDER/evidence. docs/first-difference.md also has the result
for `frozen_learning_rate` at 28 layers (`--model qwen2-1.5b --seq-len 32`). The tests are in tests/gpu/test_where.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # must be set before torch is imported, see `forked_runs`

import forked_runs
from claims_in_process import executed
from reference_where import run_of_reference

from harness.api.first_difference import locate
from harness.report.located import located
from reference_impl.faults import FAULTS, KERNELS, REPLAY, STEP

LIMIT_S = 200.0  # time limit for one fault in seconds
FIELDS = ("fault", "answer", "named", "step", "part", "how", "unseen", "seconds", "bytes", "sentence")
# Fault -> pattern of the expected answer. These are faults whose module has no operator that computes the difference.
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
# Name of a fault or of a module of faults -> settings that both arms need so that the fault makes a difference.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seq-len", type=int, default=64)
    options = parser.parse_intermixed_args()
    (options.folder / "answers").mkdir(parents=True, exist_ok=True)
    forked_runs.prepare()
    rows = [*answers(options.faults or names(options.device), options)]
    with (options.folder / "faults.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    for (answer, named), number in sorted(Counter((row["answer"], str(row["named"])) for row in rows).items()):
        print(f"{number:4d} {answer}, named: {named}")


def answers(faults: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Examine each fault in a fork, several at a time. Yield the row of each fault when its fork ends."""
    works = {fault: lambda fault=fault: answer(fault, options) for fault in faults}
    for fault, _ in forked_runs.at_once(works, limit_s=LIMIT_S):
        file = options.folder / "answers" / f"{fault}.json"
        row = {
            "fault": fault,
            "answer": "none",
            "named": "",
            "sentence": "the process of this fault failed or took too long",
        }
        row |= json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        print(f"{fault}: {row['answer']} {row['named']} {row['sentence']}", flush=True)
        yield row


def names(device: str) -> list[str]:
    """Return the faults of the step, the replay and the kernels that can be planted in a training on this device."""
    known = [(name, fault) for name, fault in FAULTS.items() if fault.hook in (STEP, REPLAY, KERNELS)]
    return [name for name, fault in known if device == "cuda" or fault.description.needs == "any"]


def answer(fault: str, options: argparse.Namespace) -> None:
    """Examine a fault, and write its row to a file in the folder of the options."""
    try:
        row = ask(fault, options)
    except Exception:
        row = {"answer": "none", "sentence": traceback.format_exc()[-500:]}
    (options.folder / "answers" / f"{fault}.json").write_text(json.dumps(row), encoding="utf-8")


def ask(fault: str, options: argparse.Namespace) -> dict[str, Any]:
    module = FAULTS[fault].change.__module__.rpartition(".")[2]
    settings = SETTINGS.get(fault, SETTINGS.get(module, {}))
    run = run_of_reference(
        options.device, fault, model=options.model, seq_len=options.seq_len, limit_s=LIMIT_S, **settings
    )
    with tempfile.TemporaryDirectory(prefix="where-") as folder:
        number = count()
        found = locate(run, lambda asked: [executed(asked, Path(folder) / str(next(number)))])
        sentence = located(found)
        lines = [line for place in found.places.values() for line in (place.line, *place.made_at)] + found.between
        is_named = any(f"reference_impl/faults/{module}.py" in line for line in lines)
        if found.found == "found" and not is_named:  # keep the evidence, so that a person can read it
            shutil.copytree(folder, options.folder / "evidence" / fault, dirs_exist_ok=True)
    expected = EXPECTED.get(fault)
    return {
        "answer": found.found,
        "named": is_named or (expected is not None and re.search(expected, sentence) is not None),
        **{name: getattr(found, name) for name in ("step", "part", "how", "unseen", "bytes")},
        "seconds": None if found.seconds is None else round(found.seconds, 2),
        "sentence": sentence,
        "in_full": found.model_dump(mode="json"),
    }


if __name__ == "__main__":
    main()
