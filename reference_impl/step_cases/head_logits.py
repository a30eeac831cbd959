"""Comparisons of the head's product, and of its statistics: each panel's largest logit and sum of exponentials.

Legend: T tokens, H hidden, V vocabulary, P panels of the vocabulary. The claim's `magnitude` is the logits' size.

The statistics are computed from the stored logits, which are rounded. In half of the cases, the logits need no
rounding, so the reference does not depend on rounding. The operands of these cases are -1, 0 and 1 times a power of
two, so their sums of products are integers times a power of two. bfloat16 represents such integers up to 256 exactly,
and 256 is ten standard deviations at a hidden size of 1536. In the other half, the operands have any value, but all
values of a row have the same sign. A logit is then as large as the sum of its terms' sizes. In these cases only the
logits are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl.kernels.products import naive
from reference_impl.step_cases.inputs import FLUSHED, Inputs, Setting

# Tokens, hidden size and vocabulary of each shape. The first has half a tile (of rows) and a third of a panel. The
# second has a single row. The third has incomplete tiles, panels and stages.
RAGGED = ((63, 64, 64), (1, 192, 1000), (300, 200, 1160))
_UNIT = 2.0**-5  # all exact logits are integer multiples of this number at magnitude 1


def head_logits(setting: Setting) -> Iterator[KernelComparison]:
    chunk, model = min(setting.config.chunk_tokens, setting.tokens), setting.model
    for tokens, hidden, vocabulary in ((chunk, model.hidden_size, model.vocab_size), *RAGGED):
        shape = f"T{tokens} H{hidden} V{vocabulary}"
        yield _exact(setting, shape, tokens, hidden, vocabulary)
        yield _any(setting, shape, tokens, hidden, vocabulary)


def _signs(inputs: Inputs, rows: int, columns: int, scale: float) -> Tensor:
    drawn = inputs.integers(rows, columns, below=3, dtype=torch.int8)
    return inputs.between_nans(drawn.to(inputs.dtype).sub_(1).mul_(scale))


def _exact(setting: Setting, shape: str, tokens: int, hidden: int, vocabulary: int) -> KernelComparison:
    inputs = setting.inputs("products.head_logits", shape)
    unit = 2.0 ** round(math.log2(setting.magnitude)) * _UNIT
    x, head = _signs(inputs, tokens, hidden, unit), _signs(inputs, vocabulary, hidden, 1.0)

    def statistics(logits: Tensor) -> dict[str, Tensor]:
        panels = torch.nn.functional.pad(logits, (0, -vocabulary % naive.PANEL), value=-math.inf)
        panels = panels.view(tokens, -1, naive.PANEL)
        maxima = panels.amax(dim=2)
        return {"logits": logits, "maxima": maxima, "totals": (panels - maxima[:, :, None]).exp().sum(dim=2)}

    def exact() -> dict[str, Tensor]:
        return statistics(x.double() @ head.double().t())

    def terms() -> dict[str, Tensor]:
        sizes = (x.double().abs() @ head.double().abs().t()).clamp(min=FLUSHED)
        found = exact()
        logits = torch.nn.functional.pad(found["logits"], (0, -vocabulary % naive.PANEL), value=-math.inf)
        distance = found["maxima"][:, :, None] - logits.view(tokens, -1, naive.PANEL)
        totals = torch.where(distance.isinf(), 0.0, (1 + distance) * (-distance).exp()).sum(dim=2)
        return {"logits": sizes, "maxima": found["maxima"].abs() + unit, "totals": totals}

    def returned(
        own: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], outputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        maxima, totals = own(x, head, outputs["logits"])
        return {"maxima": maxima, "totals": totals}

    parts = torch.empty(tokens, -(-vocabulary // naive.PANEL), device=x.device)
    return KernelComparison(
        operation="products.head_logits",
        dtype=setting.dtype_name,
        shape=f"{shape} exact",
        magnitude=setting.magnitude,
        written={"logits": x.new_empty(tokens, vocabulary), "maxima": parts, "totals": parts},
        updated={},
        kernel=lambda outputs: returned(setting.table.head_logits, outputs),
        naive=lambda outputs: returned(naive.head_logits, outputs),
        reference=exact,
        terms=terms,
        peer=("torch mm, amax and exp", lambda: _in_place_of(statistics((x @ head.t()).float()), x.dtype)),
    )


def _in_place_of(found: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return found | {"logits": found["logits"].to(dtype)}


def _any(setting: Setting, shape: str, tokens: int, hidden: int, vocabulary: int) -> KernelComparison:
    shape = f"{shape} any"
    inputs = setting.inputs("products.head_logits", shape)
    signs = torch.where(torch.arange(tokens, device=setting.device) % 2 == 0, 1.0, -1.0).to(setting.dtype)
    x = inputs.between_nans(inputs.normal(tokens, hidden, scale=setting.magnitude).abs() * signs[:, None])
    head = inputs.between_nans(inputs.normal(vocabulary, hidden, scale=1 / hidden).abs())

    def returned(own: Callable[[Tensor, Tensor, Tensor], object], outputs: Mapping[str, Tensor]) -> None:
        own(x, head, outputs["logits"])

    return KernelComparison(
        operation="products.head_logits",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"logits": x.new_empty(tokens, vocabulary)},
        updated={},
        kernel=lambda outputs: returned(setting.table.head_logits, outputs),
        naive=lambda outputs: returned(naive.head_logits, outputs),
        reference=lambda: {"logits": x.double() @ head.double().t()},
        terms=lambda: {"logits": x.double().abs() @ head.double().abs().t()},
        peer=("torch mm", lambda: {"logits": x @ head.t()}),
    )
