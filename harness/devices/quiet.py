"""Wait until no other process's work delays a kernel of this one."""

from __future__ import annotations

import sys

# bound here, before a system is imported: it could replace it in its module
from time import monotonic

SHORT_S = 0.5e-3  # chosen: far more than a kernel and its wait take alone, less than another context's time slice
QUIET_S = 0.02  # chosen: several time slices
LIMIT_S = 5.0  # a stopped process has at most a block of 50 enqueued steps left


def wait_for_quiet_device() -> None:
    """Wait until a short kernel has taken no longer than alone for 20 ms, but five seconds at most."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    torch.cuda.synchronize()
    value = torch.zeros(1, device="cuda")
    began = quiet_since = monotonic()
    while (now := monotonic()) - quiet_since < QUIET_S and now - began < LIMIT_S:
        value.add_(1)
        torch.cuda.synchronize()
        if monotonic() - now > SHORT_S:
            quiet_since = monotonic()
