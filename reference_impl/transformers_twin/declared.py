"""The settings of a training run of the transformers twin, read from a contract, not from the code of the trainer."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.system.protocol import Arm, Workload

ARM_OPTIONS: dict[str, Any] = {
    "checkpoint": str,
    "dtype": ("bfloat16", "float32", "float64"),
    "learning_rate": float,
    "max_norm": float,
}
WORKLOAD_OPTIONS: dict[str, Any] = {
    "rank": int,
    "alpha": float,
    "warmup_steps": int,
    "beta1": float,
    "beta2": float,
    "eps": float,
    "weight_decay": float,
}


@dataclass(frozen=True)
class Declared:
    """The settings of one training run, with their names in the contract. The contract must declare all of them."""

    checkpoint: Path  # a directory in the layout of Hugging Face
    text: Path | None  # a file or a folder; None: the text in `reference_impl/text/`
    dtype: str
    batch_size: int
    seq_len: int
    steps: int
    seed: int
    rank: int
    alpha: float
    learning_rate: float
    warmup_steps: int
    max_norm: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


def declared(workload: Workload, arm: Arm, data: str | None, model_directory: str | None) -> Declared:
    """Return the settings that workload and arm declare. No setting has a default.

    If `model_directory` is given, it replaces the arm's `checkpoint`. Raises ValueError for a setting that is missing
    or unknown, or whose value has a wrong type.
    """
    given = arm.settings() if model_directory is None else {**arm.settings(), "checkpoint": model_directory}
    settings = {
        **_checked(workload.options, WORKLOAD_OPTIONS, "workload"),
        **_checked(given, ARM_OPTIONS, "arm"),
    }
    if isinstance(workload.seq_len, list):
        raise ValueError("a transformers twin cannot train on sequences of several lengths; give one `seq_len`")  # noqa: TRY004
    named = settings.pop("checkpoint")
    return Declared(
        checkpoint=Path(model_directory) if model_directory is not None else _folder(named),
        text=None if data is None else Path(data),
        batch_size=workload.batch_size,
        seq_len=workload.seq_len,
        steps=workload.steps,
        seed=workload.seed,
        **settings,
    )


def _checked(given: dict[str, Any], known: dict[str, Any], where: str) -> dict[str, Any]:
    wrong = sorted(set(known) ^ set(given))
    if wrong:
        raise ValueError(
            f"the {where} of a transformers twin has wrong settings; declare exactly {', '.join(known)}; "
            f"missing or unknown: {wrong}"
        )
    return {name: float(value) if known[name] is float else value for name, value in given.items()}


def _folder(named: str) -> Path:
    """Return a folder. named: the folder's path, or `package:path` for a folder in an installed package."""
    package, colon, path = named.partition(":")
    if not colon:
        return Path(named)
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"`checkpoint: {named}` names the package {package}, which is not installed; install it")
    return Path(found.submodule_search_locations[0]) / path
