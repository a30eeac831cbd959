"""Expressions of GitHub's workflows, `${{ … }}`: as much of the language as this project's workflows use.

https://docs.github.com/en/actions/reference/workflows-and-actions/expressions
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<sign>==|!=|&&|\|\||[!().,])|(?P<name>[A-Za-z_][\w-]*))")
_FILLED = re.compile(r"\$\{\{((?:(?!\}\}).)*)\}\}", re.DOTALL)
_STATUS = ("always", "cancelled", "failure", "success")
Context = Mapping[str, Any]  # names to values; a callable is a function


def evaluate(expression: str, context: Context) -> Any:
    """The value of an expression. A property that is not there is None; raises ValueError for what is not known."""
    parser = _Parser(expression, context)
    value = parser.either()
    if parser.tokens:
        raise ValueError(f"a rehearsal does not know ${{{{ {expression.strip()} }}}}")
    return value


def filled(value: Any, context: Context) -> Any:
    """A value of a workflow file with its expressions evaluated; a text that is one expression becomes its value."""
    if isinstance(value, Mapping):
        return {key: filled(each, context) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, context) for each in value]
    if not isinstance(value, str):
        return value
    if (whole := _FILLED.fullmatch(value.strip())) is not None:
        return evaluate(whole[1], context)
    return _FILLED.sub(lambda found: shown(evaluate(found[1], context)), value)


def holds(condition: Any, context: Context) -> bool:
    """Whether an `if:` lets its job or step run: unless it asks for the state, what came before must have succeeded."""
    text = str(condition).strip() if condition is not None else "success()"
    whole = _FILLED.fullmatch(text)
    expression = whole[1] if whole is not None else text
    if not any(f"{name}(" in expression for name in _STATUS):
        expression = f"success() && ({expression})"
    return bool(evaluate(expression, context))


def shown(value: Any) -> str:
    """As GitHub writes a value into a text."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)


class _Parser:
    """Recursive descent: `||` binds least, then `&&`, comparison, `!`, and what stands in parentheses."""

    def __init__(self, expression: str, context: Context) -> None:
        self.tokens: list[tuple[str, str]] = []
        self._context, self._expression = context, expression.strip()
        at, text = 0, expression.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._unknown()
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()

    def either(self) -> Any:
        value = self._both()
        while self._take("||"):
            other = self._both()
            value = value or other
        return value

    def _both(self) -> Any:
        value = self._compared()
        while self._take("&&"):
            other = self._compared()
            value = value and other
        return value

    def _compared(self) -> Any:
        value = self._negated()
        for sign, wanted in (("==", True), ("!=", False)):
            if self._take(sign):
                return (_folded(value) == _folded(self._negated())) is wanted
        return value

    def _negated(self) -> Any:
        return not self._negated() if self._take("!") else self._single()

    def _single(self) -> Any:
        if self._take("("):
            value = self.either()
            self._expect(")")
            return value
        kind, text = self.tokens.pop(0) if self.tokens else ("", "")
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if kind != "name":
            raise self._unknown()
        if text in {"true", "false"}:
            return text == "true"
        return self._called(text) if self._take("(") else self._property(text)

    def _called(self, name: str) -> Any:
        arguments = []
        while not self._take(")"):
            arguments.append(self.either())
            self._take(",")
        function: Callable[..., Any] | None = self._context.get(name)
        if not callable(function):
            raise self._unknown()
        return function(*arguments)

    def _property(self, name: str) -> Any:
        if name not in self._context:
            raise self._unknown()
        value = self._context[name]
        while self._take("."):
            _, key = self.tokens.pop(0)
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def _take(self, sign: str) -> bool:
        if self.tokens and self.tokens[0] == ("sign", sign):
            self.tokens.pop(0)
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._unknown()

    def _unknown(self) -> ValueError:
        return ValueError(f"a rehearsal does not know ${{{{ {self._expression} }}}}")


def _folded(value: Any) -> Any:
    """Texts are compared without regard to case; nothing equals an empty text."""
    return "" if value is None else value.lower() if isinstance(value, str) else value
