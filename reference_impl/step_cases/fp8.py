"""Comparisons of the kernels that write FP8. Data multiplied by scales is compared with the unrounded fp64 results.

The rounding error of a value is at most 2^-4 of the value. If the value divided by its row's scale is smaller than the
normal numbers of e4m3, the error is at most 2^-10 of the scale. The largest value of a row is at least 224 times the
scale. Therefore 2^-10 of the scale is less than 2^-4 * 2^-13 of the row's largest value. The terms of an error bound
are the value's size, and 2^-13 of the row's largest value. The gradient of the logits is in e5m2. Its error is at most
2^-3 of the terms, which are the value's size and 2^-27 of the row's largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from harness.system.protocol import KernelComparison
from reference_impl.kernels.fp8_loss import naive as loss_twin
from reference_impl.kernels.fp8_nf4 import naive as nf4_twin
from reference_impl.kernels.fp8_norm import naive as norm_twin
from reference_impl.kernels.fp8_rows import naive as rows_twin
from reference_impl.kernels.fp8_swiglu import naive as swiglu_twin
from reference_impl.step_cases.inputs import Setting
from reference_impl.step_cases.nf4 import PAPER

RAGGED = ((5, 100), (1, 36), (3, 1100))  # rows, columns
WEIGHTS = ((200, 128), (7, 192), (1, 64))  # rows, columns; a tile of the transposed weight has 128 rows and 64 columns
LOGITS = ((4, 300), (3, 37), (2, 2100))
_SHARE = 2.0**-13
_SHARE_OF_LOSS = 2.0**-27
_APART = 10.0
Rows = tuple[Tensor, Tensor]


def _value(rows: Rows) -> dict[str, Tensor]:
    data, scale = rows
    return {"value": data.float() * scale[:, None]}


def _comparison(
    setting: Setting,
    operation: str,
    shape: str,
    kernel: Callable[[], Rows],
    twin: Callable[[], Rows],
    exact: Callable[[], Tensor],
) -> KernelComparison:
    def terms() -> dict[str, Tensor]:
        size = exact().abs()
        return {"value": size + _SHARE * size.amax(dim=1, keepdim=True) + torch.finfo(torch.float32).tiny}

    return KernelComparison(
        operation=operation,
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={"value": torch.empty(exact().shape, device=setting.device)},
        updated={},
        kernel=lambda _outputs: _value(kernel()),
        naive=lambda _outputs: _value(twin()),
        reference=lambda: {"value": exact()},
        terms=terms,
        peer=None,
    )


def rows(setting: Setting) -> Iterator[KernelComparison]:
    """Compare the quantization of rows. Neighboring rows differ by a factor of a thousand."""
    for count, cols in ((setting.tokens, setting.model.query_dim), *RAGGED):
        shape = f"R{count} C{cols}"
        inputs = setting.inputs("fp8.rows", shape)
        sizes = torch.tensor([1.0, 1e-3], device=setting.device).repeat(count)[:count, None]
        x = inputs.between_nans(inputs.normal(count, cols, scale=setting.magnitude) * sizes)
        yield _comparison(
            setting,
            "fp8.rows",
            shape,
            lambda x=x: setting.table.fp8_quantize_rows(x),  # type: ignore[misc]
            lambda x=x: rows_twin.quantize(x),  # type: ignore[misc]
            lambda x=x: x.double(),  # type: ignore[misc]
        )


def norm(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, hidden in ((setting.tokens, setting.model.hidden_size), *RAGGED):
        yield _norm(setting, tokens, hidden)


def _norm(setting: Setting, tokens: int, hidden: int) -> KernelComparison:
    shape, eps = f"T{tokens} H{hidden}", setting.model.rms_norm_eps
    inputs = setting.inputs("fp8.norm", shape)
    x, residual = (inputs.normal(tokens, hidden, scale=setting.magnitude) for _ in range(2))
    gain = inputs.gain(hidden)
    total = (x + residual).double()
    return _comparison(
        setting,
        "fp8.norm",
        shape,
        lambda: setting.table.fp8_norm_add_forward(x, residual, gain, eps, keep=True)[2:4],
        lambda: norm_twin.add_forward(x, residual, gain, eps, keep=True)[2:4],
        lambda: functional.rms_norm(total, (hidden,), gain.double(), eps),
    )


def norm_backward(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, hidden in ((setting.tokens, setting.model.hidden_size), *RAGGED):
        yield _norm_backward(setting, tokens, hidden)


def _norm_backward(setting: Setting, tokens: int, hidden: int) -> KernelComparison:
    shape, eps = f"T{tokens} H{hidden}", setting.model.rms_norm_eps
    inputs = setting.inputs("fp8.norm_backward", shape)
    x, grad, residual = (inputs.normal(tokens, hidden, scale=setting.magnitude) for _ in range(3))
    gain = inputs.gain(hidden)
    rstd = (x.double().square().mean(dim=1) + eps).rsqrt().float()

    def exact() -> Tensor:
        leaf = x.double().requires_grad_()
        with torch.enable_grad():
            y = functional.rms_norm(leaf, (hidden,), gain.double(), eps)
        [result] = torch.autograd.grad(y, leaf, grad.double())
        return result + residual.double()

    def own() -> Rows:
        partials = setting.table.gain_partials(x, 1)[0]
        found = setting.table.fp8_norm_backward_to_partials(grad, x, gain, rstd, partials, residual)
        return found[1], found[2]

    def twin() -> Rows:
        partials = torch.empty(1, hidden, device=x.device)
        found = norm_twin.backward_to_partials(grad, x, gain, rstd, partials, residual)
        return found[1], found[2]

    return _comparison(setting, "fp8.norm_backward", shape, own, twin, exact)


def swiglu(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, width in ((setting.tokens, setting.model.intermediate_size), *RAGGED):
        shape = f"T{tokens} I{width}"
        gate_up = setting.inputs("fp8.swiglu", shape).normal(tokens, 2 * width, scale=setting.magnitude)
        yield _swiglu(setting, shape, gate_up)


def _swiglu(setting: Setting, shape: str, gate_up: Tensor) -> KernelComparison:
    def exact() -> Tensor:
        gate, up = gate_up.double().chunk(2, dim=1)
        return functional.silu(gate) * up

    table = setting.table
    return _comparison(
        setting,
        "fp8.swiglu",
        shape,
        lambda: table.fp8_swiglu_forward(gate_up),
        lambda: swiglu_twin.forward(gate_up),
        exact,
    )


def swiglu_backward(setting: Setting) -> Iterator[KernelComparison]:
    for tokens, width in ((setting.tokens, setting.model.intermediate_size), *RAGGED):
        shape = f"T{tokens} I{width}"
        inputs = setting.inputs("fp8.swiglu_backward", shape)
        gate_up = inputs.normal(tokens, 2 * width, scale=setting.magnitude)
        yield _swiglu_backward(setting, shape, gate_up, inputs.normal(tokens, width))


def _swiglu_backward(setting: Setting, shape: str, gate_up: Tensor, grad: Tensor) -> KernelComparison:
    def exact() -> Tensor:
        leaf = gate_up.double().requires_grad_()
        with torch.enable_grad():
            gate, up = leaf.chunk(2, dim=1)
            act = functional.silu(gate) * up
        [result] = torch.autograd.grad(act, leaf, grad.double())
        return result

    table = setting.table
    return _comparison(
        setting,
        "fp8.swiglu_backward",
        shape,
        lambda: table.fp8_swiglu_backward(grad, gate_up),
        lambda: swiglu_twin.backward(grad, gate_up),
        exact,
    )


def weight(setting: Setting) -> Iterator[KernelComparison]:
    """Compare NF4 weights converted to FP8, untransposed and transposed. The scales of blocks have the size
    `magnitude`."""
    model = setting.model
    for count, cols in ((model.hidden_size, model.query_dim), *WEIGHTS):
        for turned in (False, True):
            yield _weight(setting, count, cols, turned=turned)


def _weight(setting: Setting, count: int, cols: int, *, turned: bool) -> KernelComparison:
    shape = f"R{count} C{cols}{' transposed' if turned else ''}"
    inputs = setting.inputs("fp8.weight", shape)
    codes = inputs.integers(count * cols // 2, below=256, dtype=torch.uint8)
    absmax = inputs.normal(count * cols // 64, scale=setting.magnitude, dtype=torch.float32).abs_()
    blocks = absmax.view(count, cols // 64)
    largest = blocks.amax(dim=0).repeat_interleave(64) if turned else blocks.amax(dim=1)
    scale, inverse = rows_twin.power_of_two_scale(largest)

    def exact() -> Tensor:
        nibbles = torch.stack((codes // 16, codes % 16), dim=1).flatten().long()
        values = torch.tensor(PAPER, dtype=torch.float64, device=codes.device)[nibbles]
        dense = (values.view(-1, 64) * absmax.double()[:, None]).view(count, cols)
        return dense.t().contiguous() if turned else dense

    table = setting.table
    own = table.fp8_from_nf4_transposed if turned else table.fp8_from_nf4
    twin = nf4_twin.transposed if turned else nf4_twin.rows
    other = count if turned else cols
    return _comparison(
        setting,
        "fp8.weight",
        shape,
        lambda: (own(codes, absmax, inverse, other), scale),
        lambda: (twin(codes, absmax, inverse, other), scale),
        exact,
    )


def loss(setting: Setting) -> Iterator[KernelComparison]:
    """Compare the gradient of the logits in e5m2. The largest probabilities are near 1, the smallest below 2^-40."""
    for tokens, vocabulary in ((4, setting.model.vocab_size), *LOGITS):
        shape = f"T{tokens} V{vocabulary}"
        inputs = setting.inputs("fp8.loss", shape)
        logits = inputs.normal(tokens, vocabulary, scale=_APART * setting.magnitude)
        targets = inputs.integers(tokens, below=vocabulary, dtype=torch.int64)
        yield _loss(setting, shape, logits, targets)


def _loss(setting: Setting, shape: str, logits: Tensor, targets: Tensor) -> KernelComparison:
    scale = torch.full((len(targets),), 1 / loss_twin.FACTOR, device=logits.device)

    def found(losses: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        return {**_value((gradient, scale)), "losses": losses}

    def exact() -> dict[str, Tensor]:
        onehot = functional.one_hot(targets, logits.shape[1])
        value = functional.softmax(logits.double(), dim=1) - onehot
        return {"value": value, "losses": functional.cross_entropy(logits.double(), targets, reduction="none")}

    def terms() -> dict[str, Tensor]:
        size, losses = (each.abs() for each in exact().values())
        return {"value": size + _SHARE_OF_LOSS * size.amax(dim=1, keepdim=True), "losses": losses + 1}

    return KernelComparison(
        operation="fp8.loss",
        dtype=setting.dtype_name,
        shape=shape,
        magnitude=setting.magnitude,
        written={name: torch.empty(each.shape, device=setting.device) for name, each in exact().items()},
        updated={},
        kernel=lambda _outputs: found(*setting.table.fp8_loss(logits, targets)),
        naive=lambda _outputs: found(*loss_twin.forward_backward(logits, targets)),
        reference=exact,
        terms=terms,
        peer=None,
    )
