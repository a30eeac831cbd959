"""List operators that torch documents not to repeat their bits on CUDA, unless deterministic algorithms are on.

Source: the lists in the documentation of `torch.use_deterministic_algorithms`. Each row has the words by which torch
documents it, the operators that a step dispatches for it, and whether torch has a deterministic form of it.
`tests/harness/system/test_unrepeated.py` compares the rows with the installed torch's own lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

Call = Mapping[str, Any]  # an operator's arguments by name


def _always(_call: Call) -> bool:
    return True


class Unrepeated(NamedTuple):
    documented: str  # the name that torch's list has
    operators: str  # of ATen, those of the backward pass where only that one is meant; "": on CUDA none is dispatched
    deterministic: bool  # torch has a form that repeats its bits
    when: Callable[[Call], bool] = _always


def _no_accumulation(call: Call) -> bool:
    return not call.get("accumulate", False)


def _reduces(*kinds: str) -> Callable[[Call], bool]:
    return lambda call: call.get("reduce") in kinds


def _is_weighted(call: Call) -> bool:
    return call.get("weights") is not None


def _takes_the_largest(call: Call) -> bool:
    return call.get("mode") == 2  # EmbeddingBag's "max"


def _of_real_numbers(call: Call) -> bool:
    given = call.get("self")
    dtype = call.get("dtype") or (given.dtype if isinstance(given, Tensor) else torch.int64)
    return bool(dtype.is_floating_point or dtype.is_complex)


UNREPEATED = (
    Unrepeated("torch.nn.Conv1d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.Conv2d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.Conv3d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ConvTranspose1d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ConvTranspose2d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ConvTranspose3d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ReplicationPad1d", "replication_pad1d_backward", deterministic=True),
    Unrepeated("torch.nn.ReplicationPad2d", "replication_pad2d_backward", deterministic=True),
    Unrepeated("torch.nn.ReplicationPad3d", "replication_pad3d_backward", deterministic=True),
    Unrepeated("torch.bmm", "", deterministic=True),  # of sparse and dense tensors alone
    Unrepeated("torch.Tensor.index_put", "index_put index_put_ _index_put_impl_", True, _no_accumulation),
    Unrepeated("torch.Tensor.scatter_add_", "scatter_add scatter_add_", deterministic=True),
    Unrepeated("torch.gather", "scatter_add scatter_add_", deterministic=True),
    Unrepeated("torch.index_add", "index_add index_add_", deterministic=True),
    Unrepeated("torch.index_select", "index_add index_add_", deterministic=True),
    Unrepeated("torch.repeat_interleave", "index_add index_add_", deterministic=True),
    Unrepeated("torch.Tensor.index_copy", "index_copy index_copy_", deterministic=True),
    Unrepeated("torch.Tensor.scatter", "scatter.src scatter_.src", deterministic=True),
    Unrepeated("torch.Tensor.scatter_reduce", "scatter_reduce.two scatter_reduce_.two", True, _reduces("sum", "mean")),
    Unrepeated("torch.nn.MaxPool3d", "max_pool3d_with_indices_backward", deterministic=True),
    Unrepeated("torch.nn.AvgPool3d", "avg_pool3d_backward", deterministic=False),
    Unrepeated("torch.nn.AdaptiveAvgPool2d", "_adaptive_avg_pool2d_backward", deterministic=False),
    Unrepeated("torch.nn.AdaptiveAvgPool3d", "_adaptive_avg_pool3d_backward", deterministic=False),
    Unrepeated("torch.nn.AdaptiveMaxPool2d", "adaptive_max_pool2d_backward", deterministic=False),
    Unrepeated("torch.nn.FractionalMaxPool2d", "fractional_max_pool2d_backward", deterministic=False),
    Unrepeated("torch.nn.FractionalMaxPool3d", "fractional_max_pool3d_backward", deterministic=False),
    Unrepeated("torch.nn.MaxUnpool1d", "max_unpool2d", deterministic=False),
    Unrepeated("torch.nn.MaxUnpool2d", "max_unpool2d", deterministic=False),
    Unrepeated("torch.nn.MaxUnpool3d", "max_unpool3d", deterministic=False),
    Unrepeated(
        "torch.nn.functional.interpolate",
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
        "upsample_trilinear3d_backward",
        deterministic=False,
    ),
    Unrepeated("torch.nn.ReflectionPad1d", "reflection_pad1d_backward", deterministic=False),
    Unrepeated("torch.nn.ReflectionPad2d", "reflection_pad2d_backward", deterministic=False),
    Unrepeated("torch.nn.ReflectionPad3d", "reflection_pad3d_backward", deterministic=False),
    Unrepeated("torch.nn.NLLLoss", "nll_loss2d_forward", deterministic=False),
    Unrepeated("torch.nn.CTCLoss", "_ctc_loss_backward", deterministic=False),
    Unrepeated(
        "torch.nn.EmbeddingBag", "_embedding_bag_backward _embedding_bag_dense_backward", False, _takes_the_largest
    ),
    Unrepeated("torch.Tensor.put_", "put put_", deterministic=False),
    Unrepeated("torch.histc", "histc", deterministic=False),
    Unrepeated("torch.bincount", "bincount", False, _is_weighted),
    Unrepeated("torch.median", "median.dim", deterministic=False),
    Unrepeated("torch.nn.functional.grid_sample", "grid_sampler_2d_backward grid_sampler_3d_backward", False),
    Unrepeated("torch.cumsum", "cumsum cumsum_", False, _of_real_numbers),
    Unrepeated("torch.Tensor.scatter_reduce", "scatter_reduce.two scatter_reduce_.two", False, _reduces("prod")),
    Unrepeated("torch.Tensor.resize_", "", deterministic=False),  # of quantized tensors alone
)
_BY_OPERATOR: dict[str, list[Unrepeated]] = {}
for _row in UNREPEATED:
    for _name in _row.operators.split():
        _BY_OPERATOR.setdefault(_name, []).append(_row)


def unrepeated(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the operator's name if torch documents that such a call may not repeat its bits; else None."""
    rows = _rows(func)
    if not rows:
        return None
    names = (argument.name for argument in func._schema.arguments)
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    repeated = torch.are_deterministic_algorithms_enabled()
    row = next((row for row in rows if row.when(call) and not (row.deterministic and repeated)), None)
    if row is None:
        return None
    return f"{func._schema.name.replace('::', '.')}{'' if row.deterministic else ', which has no deterministic form,'}"


@cache
def _rows(func: OpOverload) -> list[Unrepeated]:
    if func.namespace != "aten":
        return []
    name = func._schema.name.removeprefix("aten::")
    return [*_BY_OPERATOR.get(name, []), *_BY_OPERATOR.get(f"{name}.{func._overloadname}", [])]
