"""Comparisons of NF4 dequantization. The claim's `magnitude` is the size of the scales (absmax) of blocks.

The reference uses the values in appendix E of the QLoRA paper (Dettmers et al. 2023, arXiv 2305.14314) in fp64, in a
table that the kernels do not use. On a GPU the errors are also compared with the errors of bitsandbytes' kernel, which
uses bitsandbytes' table.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from harness.system.protocol import KernelComparison
from reference_impl.kernels.nf4 import naive
from reference_impl.step_cases.inputs import Setting

# Rows and columns of each shape. A program handles 4096 elements, and 64 share one scale. The first shape has fewer
# elements than one program handles, the second is a single block of 64, and the third ends in a part of a program.
RAGGED = ((7, 192), (1, 64), (64, 130))
_BLOCK = 64
_NEGATIVE = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
)
_POSITIVE = (
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
PAPER = (*_NEGATIVE, 0.0, *_POSITIVE)


def dequantize(setting: Setting) -> Iterator[KernelComparison]:
    """Compare attention's output projection and ragged matrices. If a matrix has over two blocks, one is zero."""
    model = setting.model
    for rows, cols in ((model.hidden_size, model.query_dim), *RAGGED):
        yield _comparison(setting, rows, cols)


def _comparison(setting: Setting, rows: int, cols: int) -> KernelComparison:
    shape, blocks = f"R{rows} C{cols}", rows * cols // _BLOCK
    inputs = setting.inputs("nf4.dequantize", shape)
    codes = inputs.integers(rows * cols // 2, below=256, dtype=torch.uint8)
    absmax = inputs.normal(blocks, scale=setting.magnitude, dtype=torch.float32).abs_()
    if blocks > 2:
        absmax[blocks // 2] = 0.0

    def reference() -> dict[str, Tensor]:
        # the high nibble of a byte holds its first element
        nibbles = torch.stack((codes // 16, codes % 16), dim=1).flatten().long()
        values = torch.tensor(PAPER, dtype=torch.float64, device=codes.device)[nibbles]
        return {"weight": (values.view(blocks, _BLOCK) * absmax.double()[:, None]).view(rows, cols)}

    def of_bitsandbytes() -> dict[str, Tensor]:
        from bitsandbytes.functional import dequantize_4bit

        weight = torch.empty(rows, cols, dtype=setting.dtype, device=codes.device)
        dequantize_4bit(codes[:, None], absmax=absmax, out=weight, blocksize=_BLOCK, quant_type="nf4")
        return {"weight": weight}

    # Use bitsandbytes only on CUDA, because importing it takes four seconds. On a CPU, a test uses it.
    has_peer = setting.device.type == "cuda" and find_spec("bitsandbytes") is not None

    given = (codes, absmax, rows, cols, setting.dtype)
    return KernelComparison(
        operation="nf4.dequantize",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"weight": torch.empty(rows, cols, dtype=setting.dtype, device=codes.device)},
        updated={},
        kernel=lambda outputs: {"weight": setting.table.nf4_dequantize(*given, outputs["weight"])},
        naive=lambda _outputs: {"weight": naive.dequantize(*given)},
        reference=reference,
        terms=lambda: {"weight": reference()["weight"].abs()},
        peer=("bitsandbytes dequantize_4bit", of_bitsandbytes) if has_peer else None,
    )
