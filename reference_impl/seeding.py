"""The rule for all random numbers that a seed determines: each pair (seed, name) has its own generator."""

from __future__ import annotations

import hashlib

import torch


def seeded_generator(seed: int, name: str, device: torch.device) -> torch.Generator:
    """Return a generator that depends only on ``seed`` and ``name``, so that the order of draws does not matter.

    The numbers are equal on all CPUs. A generator on CUDA draws other numbers than a generator on a CPU.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
