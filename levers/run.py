"""Every lever tried once: which variants compile and are right, how long each takes, and what a whole step gains.

    python -m levers.run OUT

Writes OUT/tried.jsonl (a line a variant: right or not, its error), OUT/times.jsonl (medians of interleaved rounds, and
whether 200 repetitions were equal in bits), OUT/steps.jsonl (whole steps beside both floors) and OUT/clocks.csv.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKERS = 14
COMPILE_LIMIT_S = 75.0
TRIED, TIMES = "tried.jsonl", "times.jsonl"
ROUNDS = 7
TOLERANCE = 0.02
REPETITIONS = 200
STEPS = False


def write(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def try_slice(out: Path, first: int) -> None:
    """Compile and check every WORKERS-th variant, from `first` on, but those that a process before died of."""
    import torch

    from levers.cases import variants

    mine = out / f"tried-{first}.jsonl"
    begun = {line["begun"] for line in read(mine) if "begun" in line}
    references: dict[str, list[Any]] = {}
    everything = variants()
    from levers import steps

    for function in steps.compilations()[first::WORKERS] if STEPS else ():
        name = f"step {function[0].key} | {function[1]}"
        if name in begun:
            continue
        write(mine, {"begun": name})
        try:
            steps.compile_one(*function)
            write(mine, {"group": name.split(" | ")[0], "name": str(function[1]), "ok": True})
        except Exception as error:
            write(mine, {"group": name.split(" | ")[0], "name": str(function[1]), "ok": False, "error": str(error)[:300]})
    # "today" stands first in each group.
    today = {v.group: v for v in reversed(everything) if v.name in ("today", "cublas")}
    for variant in everything[first::WORKERS]:
        identity = f"{variant.group} | {variant.name}"
        if identity in begun:
            continue
        write(mine, {"begun": identity})
        line: dict[str, Any] = {"group": variant.group, "name": variant.name}
        try:
            began = time.perf_counter()
            call, results = variant.make()
            call()
            torch.cuda.synchronize()
            line["seconds"] = round(time.perf_counter() - began, 2)
            if variant.name.startswith("library"):
                line["ok"] = True
            else:
                if variant.group not in references and variant.group in today:
                    reference_call, reference = today[variant.group].make()
                    reference_call()
                    torch.cuda.synchronize()
                    references = {variant.group: [r.clone() for r in reference()]}
                found = results()
                if variant.group.startswith(("dK", "dQ")):
                    found = []  # part of the work: the whole is compared in the group "backward"
                errors = [
                    float((a.double() - b.double()).norm() / b.double().norm())
                    for a, b in zip(found, references.get(variant.group, []), strict=False)
                ]
                line["errors"] = errors
                line["ok"] = all(error < TOLERANCE for error in errors)
        except Exception as error:
            line["ok"] = False
            line["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        write(mine, line)
        torch.cuda.empty_cache()


def try_all(out: Path) -> None:
    deadline = time.monotonic() + COMPILE_LIMIT_S
    running: dict[int, tuple[subprocess.Popen[bytes], int]] = {}

    def start(first: int, attempts: int) -> None:
        log = (out / f"tried-{first}.log").open("ab")
        command = [sys.executable, "-m", "levers.run", str(out), "try", str(first)]
        running[first] = (subprocess.Popen(command, stdout=log, stderr=log), attempts)

    for first in range(WORKERS):
        start(first, 0)
    while running and time.monotonic() < deadline:
        for first, (process, attempts) in list(running.items()):
            if process.poll() is not None:
                del running[first]
                if process.returncode != 0 and attempts < 8:
                    start(first, attempts + 1)
        time.sleep(0.2)
    for process, _ in running.values():
        process.kill()
        process.wait()
    for first in range(WORKERS):
        for line in read(out / f"tried-{first}.jsonl"):
            if "group" in line:
                write(out / TRIED, line)
        begun = [line["begun"] for line in read(out / f"tried-{first}.jsonl") if "begun" in line]
        ended = {f"{line['group']} | {line['name']}" for line in read(out / f"tried-{first}.jsonl") if "group" in line}
        for identity in begun:
            if identity not in ended:
                write(out / TRIED, {"group": identity.split(" | ")[0], "name": identity, "ok": False, "error": "died"})
        (out / f"tried-{first}.jsonl").unlink(missing_ok=True)


def time_section(out: Path, section: str) -> None:
    """Interleaved rounds of all right variants of a group, then the repetitions."""
    import torch

    from levers.cases import variants

    good = {(line["group"], line["name"]) for line in read(out / TRIED) if line.get("ok")}
    chosen = [v for v in variants() if v.section == section and (v.group, v.name) in good]
    # A capture that fails may spoil what follows: the libraries' backward stands last.
    groups = sorted(dict.fromkeys(v.group for v in chosen), key=lambda group: group.startswith("library"))
    for group in groups:
        ready: list[tuple[Any, Any, Any, int]] = []
        for variant in (v for v in chosen if v.group == group):
            try:
                call, results = variant.make()
                call()
                torch.cuda.synchronize()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                call()
                call()
                end.record()
                end.synchronize()
                count = max(2, min(40, int(2.5 / max(start.elapsed_time(end) / 2, 1e-3))))
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(count):
                        call()
                graph.replay()
                torch.cuda.synchronize()
                ready.append((variant, (call, results), graph, count))
            except Exception as error:
                write(out / TIMES, {"group": group, "name": variant.name, "error": f"{type(error).__name__}: {error}"})
        times: list[list[float]] = [[] for _ in ready]
        for _ in range(ROUNDS):
            events = []
            for _, _, graph, _ in ready:
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                pair[0].record()
                graph.replay()
                pair[1].record()
                events.append(pair)
            torch.cuda.synchronize()
            for mine, pair, (_, _, _, count) in zip(times, events, ready, strict=True):
                mine.append(pair[0].elapsed_time(pair[1]) * 1e3 / count)
        for mine, (variant, results, graph, count) in zip(times, ready, strict=True):
            graph.replay()
            torch.cuda.synchronize()
            before = [r.clone() for r in results[1]()]
            different = torch.zeros((), device="cuda", dtype=torch.int64)
            for _ in range(-(-REPETITIONS // count)):
                graph.replay()
                for a, b in zip(before, results[1](), strict=True):
                    different += (a.view(torch.uint8) != b.view(torch.uint8)).any()
            median = sorted(mine)[len(mine) // 2]
            line = {
                "group": group, "name": variant.name, "us": round(median, 2), "min": round(min(mine), 2),
                "max": round(max(mine), 2), "tflops": round(variant.flops / median / 1e6, 1),
                "repetitions": -(-REPETITIONS // count) * count, "unequal": int(different),
            }  # fmt: skip
            write(out / TIMES, line)
        del ready
        torch.cuda.empty_cache()


def table(out: Path) -> None:
    lines = read(out / TIMES)
    text = []
    for group in dict.fromkeys(line["group"] for line in lines):
        mine = sorted((x for x in lines if x["group"] == group and "us" in x), key=lambda x: float(x["us"]))
        today = next((x["us"] for x in mine if x["name"] in ("today", "cublas")), None)
        text.append(f"== {group}")
        for x in mine[:14] + [y for y in mine[14:] if y["name"] == "today"]:
            ratio = f"{x['us'] / today:.3f}" if today else "-"
            text.append(
                f"  {x['us']:>9.2f} us {ratio:>6} {x['tflops']:>7.1f} TFLOP/s unequal {x['unequal']}  {x['name']}"
            )
    bad = [x for x in read(out / TRIED) if not x.get("ok")]
    text.append(f"== not right, or not compiled: {len(bad)} of {len(read(out / TRIED))}")
    text += [f"  {x['group']} | {x['name']}: {x.get('error') or x.get('errors')}"[:200] for x in bad]
    text.append("== steps")
    text += [json.dumps(x) for x in read(out / "steps.jsonl")]
    (out / "table.txt").write_text("\n".join(text) + "\n")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        match sys.argv[2]:
            case "try":
                try_slice(out, int(sys.argv[3]))
            case "time":
                time_section(out, sys.argv[3])
            case "steps":
                from levers.steps import run

                run(out / "steps.jsonl")
        return
    os.environ["TRITON_CACHE_DIR"] = str(Path("/tmp/levers-triton"))
    query = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
    with (out / "clocks.csv").open("wb") as clocks:
        smi = subprocess.Popen(["nvidia-smi", f"--query-gpu={query}", "--format=csv", "-lms", "250"], stdout=clocks)
        try:
            began = time.monotonic()
            try_all(out)
            print(f"tried after {time.monotonic() - began:.0f} s", flush=True)
            for part in (["time", "products"], ["time", "attention"], ["time", "rows"]):
                with (out / f"{part[-1]}.log").open("wb") as log:
                    command = [sys.executable, "-m", "levers.run", str(out), *part]
                    try:
                        code = subprocess.run(command, stdout=log, stderr=log, timeout=75, check=False).returncode
                    except subprocess.TimeoutExpired:
                        code = "out of time"
                print(f"{part}: {code} after {time.monotonic() - began:.0f} s", flush=True)
                table(out)
        finally:
            smi.terminate()
            smi.wait()
    print((out / "table.txt").read_text())


if __name__ == "__main__":
    main()
