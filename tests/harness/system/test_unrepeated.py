"""The table of operators that repeat no bits on CUDA is what the installed torch documents."""

from __future__ import annotations

import re

import torch

from harness.system.replay.followed_numbers import UNREPEATED

_LISTS = "operations will act\n    deterministically", "operations will throw a\n"
_ON_CUDA_TOO = re.compile(r"CUDA|:func:`torch.Tensor.(index_put|put_|resize_)`|MaxUnpool")


def documented(which: int) -> list[str]:
    """Return the names in one of torch's lists, but those of the CPU alone."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    begin = text.index(_LISTS[which])
    end = text.index(_LISTS[1]) if which == 0 else text.index("In addition, several operations")
    items = text[begin:end].split("\n        * ")[1:]
    of_cuda = [item for item in items if _ON_CUDA_TOO.search(item) and "on a CPU\n" not in item]
    names = [re.search(r"`([\w.]+)`", item) for item in of_cuda]
    return sorted({name[1] for name in names if name is not None})


def test_every_operator_that_torch_lists_as_nondeterministic_is_in_the_table() -> None:
    assert sorted({row.documented for row in UNREPEATED if row.deterministic}) == documented(0)
    assert sorted({row.documented for row in UNREPEATED if not row.deterministic}) == documented(1)


def test_every_operator_in_the_nondeterminism_table_exists_in_torch() -> None:
    for row in UNREPEATED:
        for name in row.operators.split():
            packet = getattr(torch.ops.aten, name.partition(".")[0])
            assert name.partition(".")[2] in ("", *packet.overloads())
