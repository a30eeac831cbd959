"""Read and restore the settings of torch that apply to the whole process. An arm may change such settings when it is
opened. Without restoring them, the steps of the next arm would differ or be slower."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

# Two functions for one setting: the first reads the setting, and the second sets it to a value that the first returned.
_Accessors = tuple[Callable[[], Any], Callable[[Any], object]]


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _of_cudnn(name: str) -> _Accessors:
    return lambda: getattr(torch.backends.cudnn, name), lambda value: setattr(torch.backends.cudnn, name, value)


def _of_attention(name: str) -> _Accessors:
    own: Any = torch.backends.cuda
    return getattr(own, f"{name}_sdp_enabled"), getattr(own, f"enable_{name}_sdp")


_SETTINGS: dict[str, _Accessors] = {
    "deterministic": (_deterministic, lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1])),
    "anomalies": (_anomalies, lambda value: torch.autograd.set_detect_anomaly(*value)),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    **{f"cudnn {name}": _of_cudnn(name) for name in ("enabled", "benchmark", "deterministic")},
    **{f"attention {name}": _of_attention(name) for name in ("flash", "mem_efficient", "math", "cudnn")},
}


def torch_settings() -> dict[str, Any]:
    """Return the values of torch's settings by name. A setting that torch refuses to read is left out (TF32, if it was
    set through both of torch's APIs)."""
    found = {}
    for name, (get, _) in _SETTINGS.items():
        with suppress(RuntimeError):
            found[name] = get()
    return found


def restore_torch_settings(known: dict[str, Any]) -> None:
    """Restore each setting that has changed. known: the values to restore, in the form in which `torch_settings`
    returned them."""
    now = torch_settings()
    for name, value in known.items():
        if name in now and now[name] != value:
            _SETTINGS[name][1](value)


_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic_algorithms(*, is_strict: bool = True) -> Iterator[None]:
    """Within the `with` block, make operators of torch, cuDNN and cuBLAS give equal bits in every run.

    is_strict: True if an operator without a repeatable implementation must raise an error. If False, such an operator
    is executed anyway, and its bits may differ. cuBLAS's workspace variable is set to `:4096:8`, one of the two values
    that cuBLAS documents as reproducible. torch reads the variable at each matrix product.
    """
    known, workspace = torch_settings(), os.environ.get(_WORKSPACE)
    filling: Any = torch.utils.deterministic
    filled = filling.fill_uninitialized_memory
    os.environ[_WORKSPACE] = ":4096:8"
    # do not fill new tensors, because this would launch kernels that do not belong to the step
    filling.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(mode=True, warn_only=not is_strict)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        restore_torch_settings(known)
        filling.fill_uninitialized_memory = filled
        if workspace is None:
            del os.environ[_WORKSPACE]
        else:
            os.environ[_WORKSPACE] = workspace
