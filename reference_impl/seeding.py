"""The rule for every seeded draw: each pair (seed, name) has its own generator."""

from __future__ import annotations

import hashlib

import torch


def seeded_generator(seed: int, name: str, device: torch.device) -> torch.Generator:
    """Return a generator that depends on ``seed`` and ``name`` only, so no draw depends on the order of the others.

    Equal on all CPUs; a CUDA generator draws other numbers than a CPU one.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
