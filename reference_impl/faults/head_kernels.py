"""Planted faults of the head's product, which also writes statistics of the softmax, and of the loss that reads these
statistics.

Importable without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.system.protocol import Expectation
from reference_impl.faults.registry import KERNELS, fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from reference_impl.kernel_table import KernelTable

_WRONG = {"kernel_match": Expectation("FAIL", "exceeds_tolerance")}
_NOT_FINITE = {"kernel_match": Expectation("FAIL", "non_finite")}


@fault(KERNELS, "the statistics of the head's product leave out the last panel of the vocabulary", _WRONG)
def statistics_without_last_panel(table: KernelTable) -> None:
    def without(_logits: Tensor, maxima: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        totals[:, -1] = 0.0
        return maxima, totals

    _with_statistics(table, without)


@fault(KERNELS, "the statistics of the last panel include columns beyond the vocabulary, as logits of zero", _WRONG)
def statistics_beyond_vocabulary(table: KernelTable) -> None:
    def beyond(logits: Tensor, maxima: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        from reference_impl.kernels.products.naive import PANEL

        last = maxima[:, -1].clamp(min=0)
        totals[:, -1] *= (maxima[:, -1] - last).exp()
        totals[:, -1] += -logits.shape[1] % PANEL * (-last).exp()
        maxima[:, -1] = last
        return maxima, totals

    _with_statistics(table, beyond)


@fault(KERNELS, "the statistics' exponentials are taken without subtracting the panel's maximum", _NOT_FINITE)
def statistics_without_maximum(table: KernelTable) -> None:
    def without(_logits: Tensor, maxima: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        return maxima, totals * maxima.exp()

    _with_statistics(table, without)


@fault(KERNELS, "the loss adds the sums of a row's parts, although the parts have different maxima", _WRONG)
def statistics_not_rescaled(table: KernelTable) -> None:
    from_statistics_ = table.cross_entropy_from_statistics_

    def not_rescaled_(logits: Tensor, maxima: Tensor, totals: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
        largest = maxima.amax(dim=1, keepdim=True).expand_as(maxima).contiguous()
        return from_statistics_(logits, largest, totals, targets, scale)

    table.cross_entropy_from_statistics_ = not_rescaled_


def _with_statistics(table: KernelTable, change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    head_logits = table.head_logits

    def changed(x: Tensor, head: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        return change(out, *head_logits(x, head, out))

    table.head_logits = changed
