"""A user whom the machine has no name for is lent one, in every process that the harness starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.processes.kept import KeptProcess, lent_name


def _nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)


def test_a_user_without_a_name_gets_a_generated_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _nameless(monkeypatch)
    assert lent_name({}) == {"USER": f"user-{os.getuid()}"}


@pytest.mark.parametrize("given", ["LOGNAME", "USER"])
def test_a_user_name_already_set_in_the_environment_is_kept(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _nameless(monkeypatch)
    assert lent_name({given: "somebody"}) == {}


def test_a_user_name_known_to_the_machine_is_not_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda _: object())
    assert lent_name({}) == {}


def test_child_processes_of_a_nameless_user_get_a_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _nameless(monkeypatch)
    asks = "import getpass; print(getpass.getuser())"
    with KeptProcess([sys.executable, "-c", asks], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        with child.stdout as printed:
            assert printed.read().decode().strip() == f"user-{os.getuid()}"
