"""A name for a user whom the machine has none for: torch 2.11 asks for one at import, and Python raises KeyError."""

from __future__ import annotations

import os
from collections.abc import Mapping


def lent_name(environment: Mapping[str, str]) -> dict[str, str]:
    """`USER` where neither a variable nor the machine's list of users has a name: `getpass.getuser` reads it."""
    if any(environment.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")) or not hasattr(os, "getuid"):
        return {}
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return {"USER": f"user-{os.getuid()}"}
    return {}
