"""Compute digests, largest values, largest differences and norms of tensors, on the tensors' device.

Large tensors are never copied to the host. A digest is the sum of mix(x_i + i * GAMMA) modulo 2^64 over the 64-bit
words x_i of a tensor's raw bytes (little-endian), with i from 1. If up to seven bytes are left at the end, each of
these bytes counts as one word. GAMMA and the invertible function mix are those of splitmix64 (Steele, Lea, Flood 2014).
Integer addition is exact, so the order of addition does not matter. A change of a single word always changes the
digest. Any other change leaves the digest as it was with a probability of about 2^-64. -0.0 and 0.0 have different
digests, and so have NaNs with different payloads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from harness.devices.graphs import is_capturing
from harness.evidence.arm_records import GroupNorm, Sketch, TensorReduction
from harness.system.sharded_tensors import is_distributed, whole

_CHUNK = 1 << 24  # number of 8-byte words that are digested at a time; their positions take 128 MiB
# For tensors of up to this number of 8-byte words, the results of `_positions` are cached, because digests of batches
# are computed at every step.
_KEEP = 1 << 16
# Limits, in bytes, of tensors that are digested together: for each tensor, and for all of them in total.
_SMALL, _TOGETHER = 1 << 16, 1 << 24
_MASK = (1 << 64) - 1
_SKETCHED = 1 << 20  # number of elements that a sketch (signed sums) adds up at a time; their signs take 32 MiB
_SIGNS = 4  # number of sequences of signs; `Sketch` has one sum for each
# 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB, written as signed 64-bit numbers.
_GAMMA, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


def digest_on_device(tensor: Tensor) -> Tensor:
    """Return the digest of `tensor`'s bits as a 0-d int64 tensor on its device, without host sync."""
    parts = _parts("", tensor)
    if parts is not None:
        return combine_on_device(parts) if len(parts) > 1 else digest_on_device(*parts.values())
    return _digest_of_each_row(_row(tensor)).squeeze(0)


def _row(tensor: Tensor) -> Tensor:
    """Return all elements of a tensor as one contiguous row of shape [1, elements].

    Torch treats a tensor of one element as contiguous, whatever its stride is. But torch cannot view such a tensor as
    bytes if its stride is 0, as after `expand`. Therefore the returned row gets a new stride.
    """
    elements = dense(tensor).contiguous()
    return elements.as_strided((1, elements.numel()), (elements.numel(), 1), elements.storage_offset())


def _digest_of_each_row(tensor: Tensor) -> Tensor:
    """Return an int64 tensor [N] with the digest of each of the N rows of a dense contiguous `tensor` [N, ...]."""
    raw = tensor.view(tensor.shape[0], tensor[0].numel()).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()  # copy the bytes, because only aligned memory can be read as 8-byte words
    rows, length = raw.shape
    words = length // 8
    total = torch.full((rows,), _signed(length * _GAMMA), dtype=torch.int64, device=tensor.device)
    # `reshape` copies the data only if the row length is not a multiple of 8 bytes.
    whole = raw[:, : words * 8].reshape(rows * words * 8).view(torch.int64).view(rows, words)
    for data, first in ((whole, 0), (raw[:, words * 8 :].to(torch.int64), words)):
        for start in range(0, data.shape[1], _CHUNK):
            part = data[:, start : start + _CHUNK]
            total += _mixed(part + _positions(part.shape[1], first + start, tensor.device)).sum(dim=1)
    return total


def made_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by name. A tensor that consists of other tensors is replaced by these parts, because some
    operators support only the parts."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        parts = _parts(f"{name}.", tensor)
        # If a wrapper contains only one tensor, use this tensor in place of the wrapper, because perhaps only one of
        # two arms uses the wrapper.
        if parts is not None and len(parts) == 1:
            parts = made_of({name: next(iter(parts.values()))})
        found |= {name: tensor} if parts is None else made_of(parts)
    return found


def _parts(prefix: str, tensor: Tensor) -> dict[str, Tensor] | None:
    """Return the parts of a tensor by name, or None if it has no parts. Parts are the sequences and offsets of a nested
    tensor, or the inner tensors (codes, scales) of a tensor type of a library."""
    if _is_plain(tensor) or is_distributed(tensor):
        return None
    held: Any = tensor
    if tensor.is_nested and tensor.layout is torch.strided:
        return {f"{prefix}{place}": part for place, part in enumerate(tensor.unbind())}
    if tensor.is_nested:
        parts = {"values": held.values(), "offsets": held.offsets(), "lengths": held.lengths()}
    elif is_traceable_wrapper_subclass(held):
        parts = {name: getattr(tensor, name) for name in held.__tensor_flatten__()[0]}
    else:
        return None
    return {f"{prefix}{name}": part for name, part in parts.items() if part is not None}


def dense(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor as a dense tensor. Sparse and conjugated tensors are resolved, and tensors that
    are sharded over ranks are gathered.

    For a tensor on the device `meta`, return an empty tensor. For a quantized tensor, return its dequantized values.
    """
    tensor = whole(tensor)
    if tensor.is_meta:
        return torch.empty(0, dtype=tensor.dtype)
    if tensor.is_quantized:
        return tensor.detach().dequantize()
    plain = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    return plain.resolve_conj().resolve_neg()


def real(tensor: Tensor) -> Tensor:
    """Return a tensor as a dense real tensor. Each complex number becomes a pair of real numbers."""
    plain = dense(tensor)
    return torch.view_as_real(plain) if plain.is_complex() else plain


def combine_on_device(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return one digest (int64, shape []) of several tensors, combined in the order of names, without a host sync."""
    found = {name: digest_on_device(tensor).unsqueeze(0) for name, tensor in made_of(tensors).items()}
    return _combined(found).squeeze(0)


def combine_each(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return, for each n in 0 .. N - 1, one digest of the n-th rows of all tensors, combined as in `combine_on_device`.

    Each tensor has the shape [N, ...], and is dense and contiguous. The result is an int64 tensor [N]. The number of
    operations does not depend on N.
    """
    return _combined({name: _digest_of_each_row(tensor) for name, tensor in tensors.items()})


def _combined(digests_by_name: Mapping[str, Tensor]) -> Tensor:
    """Return an int64 tensor [N] whose n-th digest combines the n-th digests of all names, in the order of the names.
    Each name has an int64 tensor [N] of digests. The result is on the device of the first name's digests."""
    in_order = [digests_by_name[name] for name in sorted(digests_by_name)]
    table = stacked(in_order, dim=1)
    return _mixed(table + _positions(table.shape[1], 0, table.device)).sum(dim=1)


def stacked(figures: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Stack tensors that may be on several devices, with `torch.stack`. The result is on the first tensor's device."""
    return torch.stack([each.to(figures[0].device) for each in figures], dim=dim)


def as_hex(value: int) -> str:
    """Return a digest as 16 hexadecimal digits."""
    return f"{value & _MASK:016x}"


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the digest of each tensor, by name. The digests of all tensors on one device are copied to the host in one
    transfer. Small tensors of equal length are digested together, because there may be thousands of them, as in a
    replay buffer."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in tensors.items():
        together = _is_plain(tensor) and tensor.nbytes <= _SMALL
        alike.setdefault((tensor.device, tensor.nbytes) if together else (tensor.device, name), []).append(name)
    by_device: dict[torch.device, list[tuple[list[str], Tensor]]] = {}
    for (device, _), names in alike.items():
        at_once = max(1, _TOGETHER // max(1, tensors[names[0]].nbytes)) if len(names) > 1 else 1
        for start in range(0, len(names), at_once):
            some = names[start : start + at_once]
            by_device.setdefault(device, []).append((some, _digests_of([tensors[name] for name in some])))
    found: dict[str, str] = {}
    for rows in by_device.values():
        values = torch.cat([each for _, each in rows]).tolist()
        found |= zip((name for names, _ in rows for name in names), map(as_hex, values), strict=True)
    return {name: found[name] for name in tensors}


def _digests_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return an int64 tensor [N] with the digests of N tensors. If N is greater than 1, all tensors must be plain (see
    `_is_plain`) and have the same number of bytes."""
    if len(tensors) == 1:
        return digest_on_device(tensors[0]).unsqueeze(0)
    raw = [_row(each).view(torch.uint8) for each in tensors]
    return _digest_of_each_row(torch.cat(raw))


def _is_plain(tensor: Tensor) -> bool:
    """Return True if a tensor has torch's own type and strides, and is neither nested nor quantized nor on the device
    `meta`."""
    own = type(tensor) in (Tensor, nn.Parameter) and not (tensor.is_nested or tensor.is_meta or tensor.is_quantized)
    return own and tensor.layout is torch.strided


def digest_of_all(tensors: Mapping[str, Tensor]) -> str:
    """Return one digest of the names, types, shapes and bits of all tensors. Without tensors, return the digest of an
    empty text."""
    found = digests(tensors)
    lines = [f"{name} {tensors[name].dtype} {list(tensors[name].shape)} {found[name]}\n" for name in sorted(found)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def digest_of_rounded(tensors: Mapping[str, Tensor], dtype: str) -> str:
    """Return one digest of the tensors after they are rounded to `dtype`, such as `bfloat16`. Only one tensor at a time
    is copied.

    Tensors of different types therefore have equal digests if their values are equal after rounding.
    """
    target: torch.dtype = getattr(torch, dtype)
    lines = []
    for name in sorted(tensors):
        rounded = dense(tensors[name]).to(target)
        lines.append(f"{name} {target} {list(rounded.shape)} {digests({name: rounded})[name]}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def not_finite(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of tensors that contain NaN or infinity. This needs one transfer to the host for each device."""
    return _holding(tensors, _bad)


def holding_nan(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of tensors that contain NaN. This needs one transfer to the host for each device."""
    return _holding(tensors, _nan)


def _holding(tensors: Mapping[str, Tensor], what: Callable[[Tensor], Tensor]) -> set[str]:
    by_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        for each in made_of({name: tensor}).values():
            if each.numel() and not each.is_meta and (each.is_floating_point() or each.is_complex()):
                by_device.setdefault(each.device, []).append((name, what(real(each))))
    found: set[str] = set()
    for flags in by_device.values():
        values = torch.stack([flag for _, flag in flags]).tolist()
        found |= {name for (name, _), bad in zip(flags, values, strict=True) if bad}
    return found


def _bad(tensor: Tensor) -> Tensor:
    lowest, highest = torch.aminmax(_comparable(tensor))  # both results are NaN if any element is NaN
    return ~(torch.isfinite(lowest) & torch.isfinite(highest))


def _nan(tensor: Tensor) -> Tensor:
    return torch.aminmax(_comparable(tensor)).min.isnan()  # the minimum is NaN if any element is NaN


def _comparable(tensor: Tensor) -> Tensor:
    """Return the tensor in a data type that torch can compare: 8-bit floats become float32."""
    return tensor.float() if tensor.dtype.itemsize == 1 and tensor.is_floating_point() else tensor


def largest_difference(tensor: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference between two tensors of the same shape, in float64. Return NaN if any
    difference is NaN."""
    ours, theirs = _comparable(real(tensor)), _comparable(real(other))
    theirs = theirs.to(ours.device)
    if not ours.numel():
        return 0.0
    # the difference of two equal infinities would be NaN, so set it to 0
    apart = torch.where(
        ours == theirs, torch.zeros((), dtype=torch.float64, device=ours.device), ours.double() - theirs.double()
    )
    return float(apart.abs().max())


def sketches(tensors: Mapping[str, Tensor]) -> dict[str, Sketch]:
    """Return the sketch of each floating-point tensor: a few sums of its elements with fixed signs. The sketches of all
    tensors on one device are copied to the host in one transfer.

    The signs of an element are bits of splitmix64 for its position, with the tensor's name as the seed, so they are
    equal on every device. If a signed sum differs by d between two tensors, the mean of d^2 over all possible signs is
    the squared L2 norm of the tensors' difference.
    """
    rows: dict[torch.device, list[tuple[str, float, Tensor]]] = {}
    for name, tensor in made_of(tensors).items():
        plain = real(tensor)
        if plain.is_floating_point() and not tensor.is_meta:
            row = (name, torch.finfo(plain.dtype).eps, _sums(name, plain.reshape(-1)))
            rows.setdefault(plain.device, []).append(row)
    found: dict[str, Sketch] = {}
    for of_device in rows.values():
        values = torch.stack([sums for _, _, sums in of_device]).tolist()
        for (name, epsilon, _), (square, *signed) in zip(of_device, values, strict=True):
            found[name] = (epsilon, square**0.5, *signed)
    return found


def _sums(name: str, flat: Tensor) -> Tensor:
    """Return a float64 tensor [1 + _SIGNS]: the sum of the squares of the elements `flat` [N], and then their signed
    sums. name: the tensor's name, which determines the signs. NaN counts as 1, infinity as 2."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    total = torch.zeros(1 + _SIGNS, dtype=torch.float64, device=flat.device)
    bits = torch.arange(_SIGNS, device=flat.device)
    for start in range(0, flat.numel(), _SKETCHED):
        part = flat[start : start + _SKETCHED].double().nan_to_num(nan=1.0, posinf=2.0, neginf=-2.0)
        words = _mixed(_positions(len(part), start, flat.device) + _signed(seed * _GAMMA))
        signed = part.unsqueeze(1) * (1 - 2 * ((words.unsqueeze(1) >> bits) & 1))
        total += torch.cat([part.square().sum().unsqueeze(0), signed.sum(dim=0)])
    return total


def reduce_gradients(
    gradients: Mapping[str, Tensor], baseline: Mapping[str, Tensor] | None, *, sketched: bool = False
) -> list[TensorReduction]:
    """Return, for each gradient, its digest, its largest absolute value, and its largest absolute difference from the
    baseline's gradient.

    The result is in the order of `gradients`. Each gradient is compared with the baseline's gradient of the same name.
    If the baseline's gradient has another shape, or does not exist, the difference is None. No judge treats None as 0.
    """
    drawn = sketches(gradients) if sketched else {}
    others = {name: _counterpart(name, tensor, baseline) for name, tensor in gradients.items()}
    present = {name: other for name, other in others.items() if other is not None}
    own, their = digests(gradients), digests(present)
    largest = _largest(gradients)
    their_largest = _largest(present)
    difference = _largest({name: _wide(gradients[name]) - _wide(other) for name, other in present.items()})
    return [
        TensorReduction(
            name=name,
            digest=own[name],
            elements=tensor.numel(),
            max_abs=largest[name],
            max_abs_difference=difference.get(name),
            baseline_digest=their.get(name),
            baseline_max_abs=their_largest.get(name),
            sketch=drawn.get(name),
        )
        for name, tensor in gradients.items()
    ]


def reduce_groups(
    gradients: Mapping[str, Tensor], groups: Mapping[str, Sequence[str]], before: Tensor, without: Collection[str] = ()
) -> list[GroupNorm]:
    """Return two norms for each group of gradients that is clipped together: the norm before the clip, which the system
    reported, and the norm after the clip, which is computed here in float64.

    before: the reported norms [G], one for each group. without: names of parameters that have no gradient in this step.
    """
    reported = before.detach().double().flatten().tolist()
    there = [[gradients[name] for name in names if name not in without] for names in groups.values()]
    measured = stacked([_norm(tensors) for tensors in there]).tolist()
    return [
        GroupNorm(group=group, before=norm, after=after)
        for group, norm, after in zip(groups, reported, measured, strict=True)
    ]


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the L2 norm of all tensors together, computed in float64."""
    return float(_norm([*tensors]))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    return stacked([_wide(tensor).square().sum() for tensor in tensors]).sum().sqrt()


def _counterpart(name: str, tensor: Tensor, baseline: Mapping[str, Tensor] | None) -> Tensor | None:
    other = None if baseline is None else baseline.get(name)
    return None if other is None or other.shape != tensor.shape else other.to(tensor.device)


def _wide(tensor: Tensor) -> Tensor:
    return real(tensor).double()


def _largest(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the largest absolute value of each tensor: NaN if an element is NaN, 0 for an empty tensor. All values are
    copied to the host in one transfer."""
    if not tensors:
        return {}
    values = [
        _comparable(real(tensor)).abs().max().double()
        if tensor.numel()
        else torch.zeros((), dtype=torch.float64, device=tensor.device)
        for tensor in tensors.values()
    ]
    return dict(zip(tensors, stacked(values).tolist(), strict=True))


def _positions(count: int, start: int, device: torch.device) -> Tensor:
    """Return i * GAMMA for each i in start + 1 .. start + count. Results for small counts, which are frequent, are
    cached.

    During a capture the cache is not used, because an operator that is captured writes its result only at a replay, and
    into the graph's memory.
    """
    keeps = count <= _KEEP and not is_capturing()
    return (_kept_positions if keeps else _make_positions)(count, start, device)


def _make_positions(count: int, start: int, device: torch.device) -> Tensor:
    return torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=device) * _GAMMA


_kept_positions = lru_cache(maxsize=64)(_make_positions)


def _mixed(words: Tensor) -> Tensor:
    """Apply the last part of splitmix64 to each element. This function is invertible, and each bit of a result depends
    on all bits of its element."""
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, by: int) -> Tensor:
    """Shift each element right by `by` bits, and fill with zeros. A plain shift of int64 would fill with the sign bit.
    `_mixed` would then return the same result for x and ~x."""
    return (words >> by) & (_MASK >> by)


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value
