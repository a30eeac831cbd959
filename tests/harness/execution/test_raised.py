"""What is kept of an exception whose class is a stranger's: its own type and place, whatever it answers."""

from __future__ import annotations

import pytest

from harness.system.users_code import message_of, stack_of


class Speechless(Exception):  # noqa: N818 - as a system may have it
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Leaves(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise SystemExit(0)


class NoText(Exception):  # noqa: N818
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class Unnamed(type):
    def __getattribute__(cls, name: str) -> object:
        if name in {"__name__", "__qualname__", "__module__"}:
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Unnamed):  # noqa: N818
    pass


class Noted(Exception):  # noqa: N818
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("no notes")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Speechless(), "Speechless: (its message cannot be read: RuntimeError)"),
        (Leaves(), "Leaves: (its message cannot be read: SystemExit)"),
        (NoText(), "NoText: (its message cannot be read: TypeError)"),
        (Nameless("x"), "Nameless: x"),
        (Noted("x"), "Noted: x"),
        (ValueError("x"), "ValueError: x"),
        (ValueError(), "ValueError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_raised_error_is_reported_with_its_type_place_and_source_line(error: Exception, said: str) -> None:
    try:
        raise error  # noqa: TRY301
    except Exception as raised:
        message, stack = message_of(raised), stack_of(raised)
    assert message.endswith(
        f" in test_a_raised_error_is_reported_with_its_type_place_and_source_line `raise error  # noqa: TRY301`: {said}"
    )
    assert "raise error" in stack


def test_notes_of_an_exception_are_kept_in_its_message() -> None:
    error = ValueError("x")
    error.add_note("in the third batch")
    assert message_of(error) == "ValueError: x; in the third batch"
