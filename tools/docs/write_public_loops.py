"""Record two public training loops, plant changes in them, and write what was found to docs/public-loops.md.

    python tools/docs/write_public_loops.py CLONES

CLONES is a folder with clones of the repositories, named as in `LOOPS`. It takes some minutes on a CPU. The harness
and the packages `torch`, `numpy` and `requests` must be installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "public-loops.md"
HEAD = """<!-- written by tools/docs/write_public_loops.py CLONES -->
# Two public training loops, recorded

With this page you see what `harness compare-runs` says of two loops that were not written for it.
The script takes each loop from a clone at a fixed commit, and adds an import and two lines
([record a loop](recording-a-loop.md)). It records the loop twice, as `a` and `a2`, and once as `b`
for each change below. `harness compare-runs a b --repeat a2` judges them, on a CPU. The end of a
script's process closes the recording, so no loop needs a `with` block.
"""


@dataclass(frozen=True)
class Change:
    """A change that is planted in a loop: arguments that come last, or a text of a file that another one replaces."""

    what: str
    verdict: str  # the word that `compare-runs` must print
    arguments: str = ""
    file: str = ""
    old: str = ""
    new: str = ""


@dataclass(frozen=True)
class Loop:
    """A repository's training loop, the lines added to it, and the changes to plant."""

    clone: str
    address: str
    commit: str
    paths: str  # that are taken from the clone
    folder: str  # where the commands run, in the repository
    file: str
    diff: str
    prepare: str
    train: str
    changes: tuple[Change, ...]
    note: str


SAME = Change("nothing", "HELD")
LOOPS = (
    Loop(
        clone="nanoGPT",
        address="https://github.com/karpathy/nanoGPT",
        commit="3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        paths="README.md train.py model.py configurator.py config data/shakespeare_char",
        folder=".",
        file="train.py",
        diff="""\
@@ -29,2 +29,3 @@
 
+import harness
 from model import GPTConfig, GPT
@@ -254,2 +255,3 @@
 running_mfu = -1.0
+rec = harness.record(os.environ['RECORDING'], model=model, optimizer=optimizer)
 while True:
@@ -314,2 +316,3 @@
     optimizer.zero_grad(set_to_none=True)
+    rec.step(loss, batch=(X, Y))
 
""",  # noqa: W293 - context
        prepare="cp README.md data/shakespeare_char/input.txt && python data/shakespeare_char/prepare.py",
        train="python train.py config/train_shakespeare_char.py --device=cpu --compile=False --dtype=float32 "
        "--eval_interval=1000 --eval_iters=2 --block_size=32 --batch_size=4 --n_layer=2 --n_head=2 --n_embd=64 "
        "--dropout=0.0 --max_iters=30 --lr_decay_iters=30 --warmup_iters=5 --gradient_accumulation_steps=2",
        changes=(
            SAME,
            Change("the learning rate is 0.0011 instead of 0.001", "VIOLATED", "--learning_rate=0.0011"),
            Change("the learning rate grows over 6 steps instead of 5", "VIOLATED", "--warmup_iters=6"),
            Change("no gradients are accumulated", "VIOLATED", "--gradient_accumulation_steps=1"),
            Change(
                "the first batch is dropped",
                "VIOLATED",
                file="train.py",
                old="X, Y = get_batch('train') # fetch the very first batch",
                new="get_batch('train'); X, Y = get_batch('train')",
            ),
            Change(
                "gradients are not set to zero",
                "VIOLATED",
                file="train.py",
                old="    optimizer.zero_grad(set_to_none=True)\n",
                new="",
            ),
            Change(
                "attention without the fused kernel, a rounding and not an error",
                "NOT DECIDED",
                file="model.py",
                old="hasattr(torch.nn.functional, 'scaled_dot_product_attention')",
                new="False",
            ),
        ),
        note="The loop fetches batches ahead: at `rec.step`, `(X, Y)` is the first batch of the next step.",
    ),
    Loop(
        clone="examples",
        address="https://github.com/pytorch/examples",
        commit="77f55b912142e11fcfdf5b530231fb9c52f181e8",
        paths="word_language_model/main.py word_language_model/data.py word_language_model/model.py "
        "word_language_model/data/wikitext-2/valid.txt",
        folder="word_language_model",
        file="main.py",
        diff="""\
@@ -9,2 +9,3 @@
 
+import harness
 import data
@@ -195,2 +196,3 @@
 
+        rec.step(loss, batch=(data, targets))
         total_loss += loss.item()
@@ -221,2 +223,3 @@
 best_val_loss = None
+rec = harness.record(os.environ['RECORDING'], model=model)
 
""",  # noqa: W293 - context
        prepare="mkdir small\n"
        "for part in train valid test; do head -n 400 data/wikitext-2/valid.txt > small/$part.txt; done",
        train="python main.py --data small --epochs 2 --emsize 32 --nhid 32",
        changes=(
            SAME,
            Change("the learning rate is 22 instead of 20", "VIOLATED", "--lr 22"),
            Change("the norm is clipped at 0.3 instead of 0.25", "VIOLATED", "--clip 0.3"),
            Change(
                "the first batch of each epoch is dropped",
                "VIOLATED",
                file="main.py",
                old="enumerate(range(0, train_data.size(0) - 1, args.bptt))",
                new="enumerate(range(args.bptt, train_data.size(0) - 1, args.bptt))",
            ),
            Change(
                "gradients are not set to zero",
                "VIOLATED",
                file="main.py",
                old="        else:\n            model.zero_grad()\n",
                new="",
            ),
        ),
        note="The loop updates its parameters by itself: it has no optimizer to record. It draws dropout masks.",
    ),
)


def found(loop: Loop, clones: Path, folder: Path) -> Iterator[tuple[Change, list[str]]]:
    """Yield each change of a loop and what `compare-runs` printed about it. Raises SystemExit for another verdict."""
    taken = folder / "taken"
    taken.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", clones / loop.clone, "archive", loop.commit, *loop.paths.split()], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", taken], input=archive, check=True)
    home = taken / loop.folder
    patch = f"--- a/{loop.file}\n+++ b/{loop.file}\n{loop.diff}"
    subprocess.run(["patch", "-p1", "--quiet"], input=patch, cwd=home, check=True, text=True)
    _shell(loop.prepare, home, folder)
    for name in ("a", "a2"):
        _shell(loop.train, home, folder / name)
    for place, change in enumerate(loop.changes):
        changed = folder / f"changed-{place}"
        shutil.copytree(taken, changed)
        if change.file:
            file = changed / loop.folder / change.file
            text = file.read_text(encoding="utf-8")
            if text.count(change.old) != 1:
                raise SystemExit(f"{change.file} of {loop.clone} does not have once: {change.old}")
            file.write_text(text.replace(change.old, change.new), encoding="utf-8")
        _shell(f"{loop.train} {change.arguments}", changed / loop.folder, folder / f"b{place}")
        command = [sys.executable, "-m", "harness", "compare-runs", "a", f"b{place}", "--repeat", "a2"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        lines = [line.replace(f"b{place}", "b") for line in done.stdout.splitlines()]
        if not lines or not lines[-1].startswith(f"{change.verdict}: "):
            raise SystemExit(f"{loop.clone}, {change.what}: {change.verdict} expected\n{done.stdout}{done.stderr}")
        yield change, lines


def _shell(command: str, folder: Path, recording: Path) -> None:
    """Run a loop's command by this interpreter, on one thread."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = os.environ | {"PATH": path, "RECORDING": str(recording), "OMP_NUM_THREADS": "1"}
    subprocess.run(["sh", "-c", command], cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)


def section(loop: Loop) -> str:
    """Return a loop's part of the page, without what was found."""
    name = loop.address.removeprefix("https://github.com/")
    place = loop.file if loop.folder == "." else f"{loop.folder}/{loop.file}"
    return (
        f"\n## {name}\n\n[{place}]({loop.address}/blob/{loop.commit}/{place}) at commit `{loop.commit[:12]}`.\n"
        f"{loop.note}\n\n"
        f"```diff\n{loop.diff}```\n\n```text\n"
        f"{loop.prepare}\nRECORDING=a {shlex.join(shlex.split(loop.train))}\n```\n\n"
    )


def main() -> None:
    clones, parts = Path(sys.argv[1]).resolve(), [HEAD]
    with tempfile.TemporaryDirectory() as scratch:
        for loop in LOOPS:
            results = list(found(loop, clones, Path(scratch) / loop.clone))
            rows = [f"| {change.what} | {lines[-1].replace('|', ' ')} |" for change, lines in results]
            uncontrolled = [line for line in results[0][1] if line.startswith("not controlled")]
            table = "\n".join(["| changed | what `compare-runs` says of `b` |", "| --- | --- |", *rows])
            parts.append(
                f"{section(loop)}{table}\n\nEach comparison also prints:\n\n```text\n"
                + "\n".join(uncontrolled)
                + "\n```\n"
            )
    PAGE.write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
