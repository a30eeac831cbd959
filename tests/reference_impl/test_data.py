"""Batches: a pure function of (seed, index), windows used once a pass, and clear errors."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from reference_impl.data import TextBatches, read_text, tokenize
from reference_impl.errors import ReferenceImplError


def test_a_training_text_of_100_gb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "text").open("wb") as file:
        file.truncate(100 * 2**30)
    for data in (tmp_path / "text", tmp_path):
        with pytest.raises(
            ReferenceImplError, match=r"data: has 107374182400 bytes up to the file .*, more than 4294967296"
        ):
            read_text(str(data))


def counting(length: int = 401, seed: int = 0) -> TextBatches:
    return TextBatches(torch.arange(length, dtype=torch.int32), 1000, seed)


def test_targets_of_a_batch_are_its_tokens_shifted_by_one() -> None:
    tokens, targets = counting().batch(0, 4, 10)
    assert tokens.shape == (4, 10)
    assert torch.equal(targets, tokens + 1)


def test_a_pass_over_the_text_uses_every_window_once() -> None:
    data = counting()
    starts = [int(row[0]) for index in range(10) for row in data.batch(index, 4, 10)[0]]
    assert sorted(starts) == list(range(0, 400, 10))
    assert starts != sorted(starts)


def test_a_second_pass_over_the_text_has_a_different_order() -> None:
    data = counting()
    assert data.distinct(4, 10) == 10
    assert not torch.equal(data.batch(0, 4, 10)[0], data.batch(10, 4, 10)[0])


def test_a_batch_depends_on_seed_and_index_only() -> None:
    data = counting()
    late = data.batch(7, 4, 10)[0]
    assert torch.equal(counting().batch(7, 4, 10)[0], late)
    assert not torch.equal(counting(seed=1).batch(7, 4, 10)[0], late)


def test_text_bytes_are_used_as_tokens() -> None:
    assert tokenize("né".encode(), None).tolist() == [110, 195, 169]


def test_a_tokenizer_file_determines_the_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))  # noqa: S106
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    assert tokenize(b"b a c", tmp_path / "tokenizer.json").tolist() == [2, 1, 0]


def test_the_recorded_data_digest_is_that_of_the_text() -> None:
    assert TextBatches(tokenize(b"abc", None), 256, 0).digest == hashlib.sha256(b"abc").hexdigest()


def test_texts_of_a_folder_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.txt").write_text("first")
    assert read_text(str(tmp_path)) == b"first\nsecond"
    assert read_text(str(tmp_path / "b.txt")) == b"second"


def test_a_missing_training_text_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ReferenceImplError, match=r"data: '.*nowhere' does not exist; pass a text file or folder"):
        read_text(str(tmp_path / "nowhere"))


def test_an_empty_folder_of_training_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReferenceImplError, match=r"data: no file under"):
        read_text(str(tmp_path))


def test_a_training_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(ReferenceImplError, match=r"data: 30 tokens do not fill one batch of 4 x 10"):
        counting(30).batch(0, 4, 10)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ReferenceImplError, match=r"data: token 9 is outside the vocabulary of 5"):
        TextBatches(torch.arange(10), 5, 0)
