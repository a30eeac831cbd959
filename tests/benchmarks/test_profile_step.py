"""The profile's arithmetic: busy time of overlapping kernels, and averages a step."""

from __future__ import annotations

import pytest

from benchmarks.profile_step import PROFILED_STEPS, Span, busy_us, render, shorten, totals


def spans() -> list[Span]:
    """Two GEMMs side by side (10 us busy together), a gap of 5 us, one copy."""
    return [
        Span("nvjet_a", 0.0, 8.0, 8.0),
        Span("nvjet_b", 2.0, 10.0, 8.0),
        Span("Memcpy DtoD", 15.0, 20.0, 5.0),
    ]


def test_time_of_overlapping_kernels_counts_only_once_as_busy() -> None:
    assert busy_us(spans()) == 15.0


def test_a_kernel_inside_another_kernels_time_adds_no_busy_time() -> None:
    assert busy_us([Span("a", 0.0, 10.0, 10.0), Span("b", 2.0, 3.0, 1.0), Span("c", 9.0, 12.0, 3.0)]) == 12.0


def test_totals_are_averages_of_a_step_with_the_largest_first() -> None:
    found = totals(spans(), lambda name: name[:5])
    assert list(found) == ["nvjet", "Memcp"]
    assert found["nvjet"] == pytest.approx((0.016 / PROFILED_STEPS, 2 / PROFILED_STEPS))


def test_the_profile_table_separates_sum_span_and_idle_time() -> None:
    table = render("arm", spans(), 1.0, 2.0)
    assert "sum 0.01 ms, span 0.01 ms, idle 0.00 ms" in table
    longer = [Span(span.name, span.start_us * 1e3, span.end_us * 1e3, span.cost_us * 1e3) for span in spans()]
    assert "sum 10.50 ms, span 10.00 ms, idle 2.50 ms, 2 kernels" in render("arm", longer, 1.0, 2.0)


def test_a_shortened_kernel_name_keeps_its_functor() -> None:
    name = "void at::native::elementwise_kernel<" + "x" * 200 + "MulFunctor<float>>"
    assert shorten(name).endswith("MulFunctor<float>>")
    assert len(shorten(name)) == 110
