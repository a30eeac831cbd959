"""Digests see every bit and the order; differences, largest values and norms are those of numpy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.testing._internal.two_tensor import TwoTensor

from harness.execution.series_block import batch_digests
from harness.execution.watchers import reductions
from harness.execution.watchers.reductions import (
    as_hex,
    combine_each,
    combine_on_device,
    digest_of_all,
    digest_on_device,
    digests,
    largest_difference,
    not_finite,
    reduce_gradients,
    reduce_groups,
    stacked,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


def digest(tensor: Tensor) -> int:
    return int(digest_on_device(tensor))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 131])
def test_a_change_of_any_element_changes_the_digest(dtype: torch.dtype, size: int) -> None:
    tensor = (torch.arange(size) % 2).to(dtype)
    seen = {digest(tensor)}
    for position in range(size):
        changed = tensor.clone()
        changed[position] = 1 - int(tensor[position])
        seen.add(digest(changed))
    assert len(seen) == size + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_swapping_two_elements_changes_the_digest(dtype: torch.dtype) -> None:
    tensor = torch.arange(40).to(dtype)
    seen = set()
    for first in range(39):
        swapped = tensor.clone()
        swapped[first], swapped[first + 1] = tensor[first + 1].clone(), tensor[first].clone()
        seen.add(digest(swapped))
    assert len(seen | {digest(tensor)}) == 40


def test_the_tensor_digest_is_the_documented_sum() -> None:
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mixed(value: int) -> int:
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
        return value ^ (value >> 31)

    raw = bytes(range(200, 221))  # two words and five single bytes
    words = [int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:16], "little"), *raw[16:]]
    expected = len(raw) * gamma + sum(mixed(x + i * gamma & mask) for i, x in enumerate(words, start=1))
    assert as_hex(digest(torch.tensor(list(raw), dtype=torch.uint8))) == f"{expected & mask:016x}"


@pytest.mark.parametrize("shape", [(), (3,), (8,), (2, 5), (0,)], ids=str)
def test_batched_step_digests_equal_the_digests_of_single_steps(shape: tuple[int, ...]) -> None:
    """The inputs include tensors whose bytes do not fill whole words, and inputs without a dimension."""
    generator = torch.Generator().manual_seed(3)
    steps = {
        "tokens": torch.randint(0, 99, (7, *shape), generator=generator),
        "mask": torch.randint(0, 2, (7, *shape), generator=generator).bool(),
        "half": torch.randn(7, *shape, generator=generator).bfloat16(),
    }
    one_by_one = [int(combine_on_device({name: rows[step] for name, rows in steps.items()})) for step in range(7)]
    assert combine_each(steps).tolist() == one_by_one
    assert len(set(one_by_one)) == (7 if shape != (0,) else 1)


def noted_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors are digested at once, each time."""
    calls: list[int] = []
    each_row = reductions._digest_of_each_row

    def noting(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return each_row(rows)

    monkeypatch.setattr(reductions, "_digest_of_each_row", noting)
    return calls


def test_small_tensors_of_one_shape_are_digested_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay buffer in numpy can have thousands of small tensors.

    Together they take as few operations as one tensor, and the digests are the same.
    """
    tensors = {f"{index}": torch.randn(3, 5) for index in range(50)} | {
        "double": torch.randn(3, 5, dtype=torch.float64),
        "turned": torch.randn(5, 3).T,
        "alone": torch.randn(7),
        "empty": torch.empty(0),
        "other empty": torch.empty(0),
        "number": torch.tensor(1.5),
        "another": torch.tensor(2),
        "complex": torch.randn(2, dtype=torch.complex64).conj(),
        "also complex": torch.randn(2, dtype=torch.complex64),
        "elsewhere": torch.empty(3, 5, device="meta"),
        "sparse": torch.eye(3).to_sparse(),
        "made of two": TwoTensor(torch.randn(3, 5), torch.randn(3, 5)),  # type: ignore[no-untyped-call]
    }
    one_by_one = {name: as_hex(digest(tensor)) for name, tensor in tensors.items()}
    calls = noted_rows(monkeypatch)
    assert digests(tensors) == one_by_one
    assert list(digests(tensors)) == list(tensors)
    assert max(calls) >= 50
    assert len(calls) < 40


def test_large_tensors_are_digested_without_copying_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "_SMALL", 16)
    rows = noted_rows(monkeypatch)
    digests({"first": torch.randn(5), "second": torch.randn(5), "small": torch.randn(4), "another": torch.randn(4)})
    assert sorted(rows) == [1, 1, 2]


def test_the_effects_of_two_changed_signs_do_not_cancel_in_the_digest() -> None:
    tensor = torch.ones(64)
    seen = {digest(tensor)}
    for first in range(63):
        for second in range(first + 1, 64):
            changed = tensor.clone()
            changed[[first, second]] = -1.0
            seen.add(digest(changed))
    assert len(seen) == 1 + 64 * 63 // 2


def test_signed_zeros_and_nan_payloads_differ_and_equal_nans_agree() -> None:
    nan = torch.tensor([math.nan])
    other = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    assert digest(nan) != digest(other)
    assert digest(nan) == digest(nan.clone())


def test_a_digest_depends_on_length_but_not_on_alignment_or_strides() -> None:
    base = torch.arange(33, dtype=torch.float32)
    assert digest(base[1:]) == digest(base[1:].clone())
    grid = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert digest(grid.t()) == digest(grid.t().contiguous())
    assert digest(torch.zeros(3)) != digest(torch.zeros(4))


def test_long_tensors_are_hashed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(1000, dtype=torch.int32)
    whole = digest(tensor)
    monkeypatch.setattr("harness.execution.watchers.reductions._CHUNK", 7)
    assert digest(tensor) == whole


def test_the_digest_of_several_tensors_depends_on_their_names_and_not_on_their_order() -> None:
    x, y = torch.arange(4), torch.arange(4, 8)
    assert int(combine_on_device({"x": x, "y": y})) == int(combine_on_device({"y": y, "x": x}))
    assert int(combine_on_device({"x": x, "y": y})) != int(combine_on_device({"x": y, "y": x}))


def test_digests_of_tensors_on_two_devices_are_combined_on_the_device_of_the_first_tensor() -> None:
    """A packed sequence keeps its lengths on the host, next to inputs on the device."""
    tensors = {"tokens": torch.zeros(2, 4, device="meta"), "with_lengths": torch.ones(2, dtype=torch.int64)}
    assert combine_each(tensors).device.type == "meta"
    assert combine_each(tensors).shape == (2,)


def test_figures_on_several_devices_are_stacked_on_the_first_device() -> None:
    """A model may have layers on two GPUs, each with its gradients, or a loss on the host next to figures on the
    device.
    """
    found = stacked([torch.zeros((), device="meta"), torch.ones(())])
    assert (found.device.type, found.shape) == ("meta", (2,))
    assert stacked([torch.zeros(()), torch.ones(())]).tolist() == [0.0, 1.0]
    assert stacked([torch.zeros(3), torch.ones(3)], dim=1).shape == (3, 2)


def test_the_digest_of_all_tensors_covers_names_shapes_and_types() -> None:
    x = torch.zeros(4)
    variants = [{"a": x}, {"b": x}, {"a": x.view(2, 2)}, {"a": x.to(torch.int32)}, {"a": x, "b": x}, {}]
    assert len({digest_of_all(variant) for variant in variants}) == len(variants)


def test_gradients_are_compared_with_those_of_the_baseline() -> None:
    own = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([2.0]), "c": torch.tensor([1.0, 1.0])}
    baseline = {"a": torch.tensor([1.5, -3.75]), "b": torch.tensor([2.0]), "c": torch.tensor([1.0])}
    a, b, c = reduce_gradients(own, baseline)
    assert (a.name, a.elements, a.max_abs, a.max_abs_difference, a.baseline_max_abs) == ("a", 2, 4.0, 0.5, 3.75)
    assert (b.max_abs_difference, b.digest == b.baseline_digest) == (0.0, True)
    assert (c.max_abs_difference, c.baseline_digest) == (None, None)  # another shape is no difference of zero
    assert a.digest == digests(own)["a"]


def test_a_nan_gradient_is_never_a_small_difference() -> None:
    (reduced,) = reduce_gradients({"a": torch.tensor([math.nan, 1.0])}, {"a": torch.tensor([math.nan, 1.0])})
    assert math.isnan(reduced.max_abs)
    assert reduced.max_abs_difference is not None
    assert math.isnan(reduced.max_abs_difference)


def test_small_differences_are_not_lost_to_the_gradients_own_type() -> None:
    own, other = torch.tensor([1.0], dtype=torch.float32), torch.tensor([1.0 + 2**-40], dtype=torch.float64)
    (reduced,) = reduce_gradients({"a": own}, {"a": other})
    assert reduced.max_abs_difference == 2**-40


def test_group_norms_are_measured_in_float64() -> None:
    gradients = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0]), "c": torch.full((1000,), 0.1)}
    groups = {"layer.0": ["a", "b"], "layer.1": ["c"]}
    first, second = reduce_groups(gradients, groups, torch.tensor([50.0, 2.0]))
    assert (first.group, first.before, first.after) == ("layer.0", 50.0, 5.0)
    assert second.after == pytest.approx(np.sqrt(1000) * np.float64(np.float32(0.1)), rel=1e-14)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_gradients_are_compared_like_their_dense_form() -> None:
    full = torch.tensor([[0.0, -3.0], [0.0, 0.0], [2.0, 0.0]])
    other = torch.tensor([[0.0, -3.0], [0.5, 0.0], [2.0, 0.0]])
    (expected,) = reduce_gradients({"a": full}, {"a": other})
    places, values = torch.tensor([[0, 0, 2], [1, 1, 0]]), torch.tensor([-1.0, -2.0, 2.0])  # one place twice
    twice = torch.sparse_coo_tensor(places, values, (3, 2), check_invariants=True)
    for sparse in (full.to_sparse(), full.to_sparse_csr(), twice):
        assert reduce_gradients({"a": sparse}, {"a": other}) == [expected]
        assert reduce_gradients({"a": full}, {"a": other.to_sparse()}) == [expected]
        (norm,) = reduce_groups({"a": sparse}, {"all": ["a"]}, torch.tensor([9.0]))
        assert norm.after == math.sqrt(13)


@pytest.mark.parametrize("conjugated", [False, True])
def test_complex_gradients_are_compared_in_real_and_imaginary_part(conjugated: bool) -> None:
    own = torch.tensor([1 + 2j, 3 - 4j])
    other = torch.tensor([1 + 2j, 3 - 6j])
    if conjugated:
        own, other = own.conj(), other.conj()
    (reduced,) = reduce_gradients({"a": own}, {"a": other})
    assert (reduced.max_abs, reduced.baseline_max_abs, reduced.max_abs_difference) == (4.0, 6.0, 2.0)
    (norm,) = reduce_groups({"a": own}, {"all": ["a"]}, torch.tensor([9.0]))
    assert norm.after == math.sqrt(30)


def test_a_change_in_any_part_of_a_composed_tensor_changes_its_digest() -> None:
    """Weights of torchao are composed of codes and scales, and an operator may read only one of the two."""
    one, other = torch.arange(4.0), torch.ones(4)

    def made(one: Tensor, other: Tensor) -> Tensor:
        return TwoTensor(one, other)  # type: ignore[no-untyped-call]

    assert digest(made(one, other)) == digest(made(one.clone(), other.clone()))
    assert len({digest(made(one, other)), digest(made(one, other + 1)), digest(made(one + 1, other))}) == 3
    assert not_finite({"made": made(one, torch.full((4,), math.nan)), "fine": made(one, other)}) == {"made"}


def test_a_wrapper_around_one_tensor_has_the_digest_of_that_tensor() -> None:
    """Training in float8 puts such a wrapper around a weight.

    An arm without the wrapper starts from equal parameters.
    """
    weight = torch.arange(4.0)
    covered = AsyncCollectiveTensor(weight)
    assert digest(covered) == digest(weight)
    assert batch_digests([{"x": covered}]) == batch_digests([{"x": weight}])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_batches_with_different_sequence_lengths_have_different_digests(layout: torch.layout) -> None:
    def nested(*lengths: int) -> Tensor:
        return torch.nested.nested_tensor([torch.zeros(length, 2) for length in lengths], layout=layout)

    batches = [{"x": nested(1, 3)}, {"x": nested(3, 1)}, {"x": nested(1, 3)}]
    found = batch_digests(batches)
    assert found[0] == found[2] != found[1]
    assert found == [as_hex(int(combine_on_device(batch))) for batch in batches]
    assert digests({"x": nested(1, 3)}) != digests({"x": nested(3, 1)})


def test_a_weight_offloaded_to_the_meta_device_has_a_digest_of_its_form() -> None:
    """A library that offloads a frozen weight leaves a tensor without values on the device `meta`."""
    away = {"weight": torch.empty(3, 2, device="meta"), "one": torch.empty((), device="meta")}
    assert digest_of_all(away) == digest_of_all(away)
    assert digest_of_all(away) != digest_of_all({**away, "weight": torch.empty(2, 3, device="meta")})
    assert not_finite(away) == set()
    assert largest_difference(away["weight"], away["weight"]) == 0.0


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_digested_by_its_dequantized_values() -> None:
    """Regression: reading the bytes of a quantized tensor as another type ended the process (SIGSEGV)."""

    def quantized(values: Tensor) -> Tensor:
        return torch.quantize_per_tensor(values, 0.5, 0, torch.qint8)

    assert digest(quantized(torch.arange(4.0))) == digest(quantized(torch.arange(4.0)))
    assert digest(quantized(torch.arange(4.0))) != digest(quantized(torch.arange(4.0) + 1))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_gradients_in_8_bits_are_compared(dtype: torch.dtype) -> None:
    ours, theirs = torch.tensor([1.0, -4.0]).to(dtype), torch.tensor([1.0, -2.0]).to(dtype)
    [found] = reduce_gradients({"a": ours}, {"a": theirs})
    assert (found.max_abs, found.max_abs_difference, found.baseline_max_abs) == (4.0, 2.0, 2.0)


def test_a_gradient_group_norm_covers_only_existing_gradients() -> None:
    """A parameter that no step reaches has no gradient, and adds nothing to the norm of its group."""
    groups, before = {"some": ["a", "unused"], "none": ["unused"]}, torch.tensor([5.0, 0.0])
    found = reduce_groups({"a": torch.tensor([3.0, 4.0])}, groups, before, without={"unused"})
    assert [(one.before, one.after) for one in found] == [(5.0, 5.0), (0.0, 0.0)]
    with pytest.raises(KeyError):
        reduce_groups({"a": torch.tensor([3.0, 4.0])}, groups, before)


def test_a_single_element_has_the_digest_of_its_value_whatever_its_stride() -> None:
    expanded, plain = torch.tensor(3.0).expand(1), torch.tensor([3.0])
    assert expanded.stride() != plain.stride()
    assert digest(expanded) == digest(plain)
    assert digests({"a": expanded, "b": plain})["a"] == digests({"a": plain})["a"]
