"""Groups of frozen matrices, and the order in which a pass takes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impl.dense import DenseWeights, MatrixGroup
from reference_impl.nf4 import FullMatrix, QuantizedMatrix
from reference_impl.streams import StepStreams

CPU = torch.device("cpu")


def random(rows: int, cols: int, seed: int) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "shapes", [((8, 64), (4, 128)), ((3, 64), (4, 128))], ids=["one launch", "scales not aligned: one by one"]
)
def test_grouped_quantized_matrices_dequantize_like_single_matrices(shapes: tuple[tuple[int, int], ...]) -> None:
    alone = [QuantizedMatrix.from_dense(random(*shape, seed)) for seed, shape in enumerate(shapes)]
    group = MatrixGroup(alone)
    for weight, matrix, member in zip(group.dense(torch.float32), alone, group.matrices, strict=True):
        assert torch.equal(weight, matrix.dense(torch.float32))
        assert torch.equal(member.dense(torch.float32), matrix.dense(torch.float32))


def test_quantized_codes_of_joined_matrices_are_stored_once() -> None:
    group = MatrixGroup([QuantizedMatrix.from_dense(random(8, 64, seed)) for seed in range(3)])
    for name in ("codes", "absmax"):
        storages = {matrix.tensors()[name].untyped_storage().data_ptr() for matrix in group.matrices}
        assert len(storages) == 1, name


def test_full_precision_matrices_are_used_without_dequantization() -> None:
    weights = [random(2, 3, seed) for seed in range(2)]
    dense = MatrixGroup([FullMatrix(weight) for weight in weights]).dense(torch.float32)
    assert [one is other for one, other in zip(dense, weights, strict=True)] == [True, True]


def test_weight_groups_are_used_in_their_order_even_if_prefetched_ahead() -> None:
    weights = [random(2, 2, seed) for seed in range(3)]
    dense = DenseWeights([MatrixGroup([FullMatrix(w)]) for w in weights], torch.float32, StepStreams(CPU))
    dense.ahead(5)  # more than there are
    assert [dense.take()[0] is weight for weight in weights] == [True] * 3


def test_without_a_second_stream_side_branches_run_immediately_and_prefetched_values_when_used() -> None:
    streams, done = StepStreams(CPU), []
    branch = streams.branch(lambda: done.append("branch"))
    value = streams.beside(lambda: done.append("value"))
    value.start()
    assert done == ["branch"]
    branch.take()
    value.take()
    assert done == ["branch", "value"]
