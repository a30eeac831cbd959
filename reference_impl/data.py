"""Cut the text for training into batches. A batch depends only on the seed and the index of the step.

If the run names no data, the text in `text/` is used, which has the same bytes on every machine. Tokens are the bytes
of the text, or come from a model directory's ``tokenizer.json``.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from reference_impl.errors import ReferenceImplError
from reference_impl.files import read_all
from reference_impl.seeding import seeded_generator

DEFAULT_TEXT = Path(__file__).parent / "text" / "python-topics.txt"
DEFAULT_TEXT_SHA256 = "7dd38bc19ee54289f6d1229194ee5318d31aa42bf93e0590ea390c4b8735e1f4"


def default_text() -> bytes:
    """Return the text that comes with the trainer.

    Raises `ReferenceImplError` if the file has other bytes, for example because a checkout converted the line ends. The
    thresholds in the contracts of this repository were measured on exactly this text.
    """
    text = DEFAULT_TEXT.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    if digest != DEFAULT_TEXT_SHA256:
        raise ReferenceImplError(
            "data", f"{DEFAULT_TEXT.name} has SHA-256 {digest}, not {DEFAULT_TEXT_SHA256}", "restore the file"
        )
    return text


def read_text(data: str | None) -> bytes:
    """Return the bytes of the file ``data``, or of all files in the folder ``data``, in the order of the files' paths.

    None means the default text. Raises `ReferenceImplError` if there is no such file.
    """
    if data is None:
        return default_text()
    path = Path(data)
    if path.is_file():
        return read_all([path])
    if not path.is_dir():
        raise ReferenceImplError("data", f"{data!r} does not exist", "pass a text file or folder")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if not files:
        raise ReferenceImplError("data", f"no file under {data!r}", "pass a text file or folder")
    return read_all(files)


def _byte_tokens(text: bytes) -> Tensor:
    # Copy into a bytearray, because torch warns about buffers that cannot be written to.
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def tokenize(text: bytes, tokenizer: Path | None) -> Tensor:
    """Return the tokens of ``text``, [n]. They are the bytes of the text (uint8), or the tokens of a Hugging Face
    ``tokenizer.json`` (int32)."""
    if tokenizer is None:
        return _byte_tokens(text)
    try:
        tokenizers = import_module("tokenizers")
    except ImportError as error:
        raise ReferenceImplError(
            "model", f"{tokenizer} needs the tokenizers library", "run `pip install '.[reference]'` in the checkout"
        ) from error
    encoding = tokenizers.Tokenizer.from_file(str(tokenizer)).encode(text.decode(errors="replace"))
    return torch.tensor(encoding.ids, dtype=torch.int32)


@lru_cache(maxsize=8)
def window_order(seed: int, number: int, windows: int) -> Tensor:
    """Return the order of the windows in pass ``number`` over the text: indices of windows, int64 [windows].

    The result is cached, because a long text has millions of windows.
    """
    return torch.randperm(windows, generator=seeded_generator(seed, f"pass {number}", torch.device("cpu")))


class TextBatches:
    """Batches of windows of the text. In a window, every token but the last is an input, and every token but the first
    is a target. The last token is also the first input of the next window.

    A pass over the text uses each window at most once. Each pass has its own order, which depends on the seed.
    """

    def __init__(self, tokens: Tensor, vocab_size: int, seed: int) -> None:
        if tokens.numel() and int(tokens.max()) >= vocab_size:
            raise ReferenceImplError(
                "data", f"token {int(tokens.max())} is outside the vocabulary of {vocab_size}", "use another tokenizer"
            )
        self._tokens = tokens
        self._seed = seed

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the tokens, to prove that two runs read the same text."""
        return hashlib.sha256(self._tokens.numpy().tobytes()).hexdigest()

    def distinct(self, batch_size: int, seq_len: int) -> int:
        """Return the number of batches of this shape in one pass over the text. These batches have no window in
        common."""
        return (self._tokens.numel() - 1) // seq_len // batch_size

    def batch(self, index: int, batch_size: int, seq_len: int) -> tuple[Tensor, Tensor]:
        """Return tokens and next-token targets of batch ``index``, both int64 [batch_size, seq_len] on the CPU."""
        per_pass = self.distinct(batch_size, seq_len)
        if per_pass < 1:
            raise ReferenceImplError(
                "data",
                f"{self._tokens.numel()} tokens do not fill one batch of {batch_size} x {seq_len}",
                "pass a longer text, or a smaller batch_size or seq_len",
            )
        number, within = divmod(index, per_pass)
        order = window_order(self._seed, number, (self._tokens.numel() - 1) // seq_len)
        starts = order[within * batch_size : (within + 1) * batch_size] * seq_len
        windows = self._tokens[starts[:, None] + torch.arange(seq_len + 1)].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
