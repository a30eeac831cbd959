"""Measure the time that `harness.record` adds to a step. Blocks of steps with the recorder and without it take turns in
one process.

The step trains a transformer of 4 layers on 4 x 128 tokens, on the GPU if there is one. Loss, norm and batch are
recorded. The added share is the median over pairs of blocks. The benchmark also prints the share of a step's time that
the host spends in the recorder's method `step`. A busy machine affects this second share less.

python -m benchmarks.recorder_cost [PAIRS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import harness

BLOCK = 3  # number of steps in a block
VOCABULARY, WIDTH, LENGTH, ROWS = 1024, 256, 128, 4


@dataclass(frozen=True)
class Cost:
    """Seconds of a step without the recorder, and two shares of this time.

    `added` is the time that the recorder adds. `on_host` is the host's time in the recorder's method `step`.
    """

    step_s: float
    added: float
    on_host: float


class Model(nn.Module):
    """A transformer: embedding, four encoder layers, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [rows, length, vocabulary] for tokens [rows, length]."""
        logits: Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


def measure(pairs: int) -> Cost:
    """Return the recorder's cost, measured over `pairs` pairs of blocks after one pair that is not counted."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)  # with several threads, other programs on the machine would disturb the measurement more
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    plain, recorded, calls = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder, harness.record(Path(folder) / "run") as recorder:

        def block(*, records: bool) -> float:
            began = time.perf_counter()
            for _ in range(BLOCK):
                tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), device=device)
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                if records:
                    called = time.perf_counter()
                    recorder.step(loss, grad_norm=norm, batch=tokens)
                    calls.append(time.perf_counter() - called)
            if device == "cuda":
                torch.cuda.synchronize()
            return (time.perf_counter() - began) / BLOCK

        for pair in range(pairs + 1):
            for records in (False, True) if pair % 2 else (True, False):
                (recorded if records else plain).append(block(records=records))
    step_s = statistics.median(plain[1:])
    added = statistics.median(after / before - 1 for before, after in zip(plain[1:], recorded[1:], strict=True))
    return Cost(step_s, added, statistics.median(calls[BLOCK:]) / step_s)


def main() -> None:
    cost = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    print(
        f"a step takes {1000 * cost.step_s:.2f} ms; the recording adds {100 * cost.added:+.2f} % of it, of which calls "
        f"of `step` take {100 * cost.on_host:.2f} %"
    )


if __name__ == "__main__":
    main()
