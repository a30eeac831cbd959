"""Read the text, its tokens and each step's windows, with transformers' tokenizer and torch's samplers.

A window has `seq_len` tokens and one more token, which is also the first token of the next window. A pass over the text
reads each window at most once, in the order of `torch.utils.data.RandomSampler` with the generator for (seed, "pass
NUMBER"). If the windows at the end of a pass do not fill a batch, they are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler

DEFAULT_TEXT = Path(__file__).parents[1] / "text" / "python-topics.txt"


def generator_of(seed: int, name: str) -> torch.Generator:
    """Return a generator seeded with the first 56 bits (big-endian) of the SHA-256 of the text "SEED:NAME"."""
    head = hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()[:14]
    return torch.Generator().manual_seed(int(head, 16))


def read_text(path: Path | None) -> bytes:
    """Return the bytes of the file `path`, or of all files under the folder `path`. None means the default text.

    The files of a folder are sorted by path and joined by line ends.
    """
    if path is None:
        return DEFAULT_TEXT.read_bytes()
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return b"\n".join(each.read_bytes() for each in files)


def tokens_of(text: bytes, checkpoint: Path) -> Tensor:
    """Return the tokens of the text, int64 [tokens], by the checkpoint's tokenizer. If the checkpoint has no tokenizer,
    each byte is a token."""
    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        return torch.tensor(list(text), dtype=torch.int64)
    # Declare the type Any, because transformers builds its classes at run time, so no type checker knows them.
    tokenizer: Any = import_module("transformers").PreTrainedTokenizerFast(tokenizer_file=str(file))
    encoded: list[int] = tokenizer(text.decode(errors="replace"))["input_ids"]
    return torch.tensor(encoded, dtype=torch.int64)


class Windows:
    """Batches of a text by index. Each row of a batch is one window."""

    def __init__(self, tokens: Tensor, batch_size: int, seq_len: int, seed: int) -> None:
        self._windows = tokens.unfold(0, seq_len + 1, seq_len)  # shape [windows, seq_len + 1]
        self._batch_size, self._seed = batch_size, seed
        if len(self._windows) < batch_size:
            raise ValueError(
                f"{len(tokens)} tokens do not fill one batch of {batch_size} x {seq_len}; use a longer text"
            )

    def batch(self, index: int) -> Tensor:
        """Return the batch with this index, int64 [batch_size, seq_len + 1]."""
        number, within = divmod(index, len(self._windows) // self._batch_size)
        rows = next(islice(self._pass(number), within, None))
        return self._windows[rows]

    def _pass(self, number: int) -> Iterator[list[int]]:
        sampler = RandomSampler(range(len(self._windows)), generator=generator_of(self._seed, f"pass {number}"))
        return iter(BatchSampler(sampler, self._batch_size, drop_last=True))
