"""Render HTML pages that load no other file. A page's content security policy allows only its own style, script and
images."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from harness.report.blocks import Section
from harness.report.charts.svg import Plot, stylesheet
from harness.report.text import line, listing, sentence

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render_page(template: str, sections: Sequence[Section], drawn: Sequence[Plot] = (), **values: Any) -> str:
    """Return the page that a template of this package gives. drawn: plots that are on the page but in no section.

    values: name in the template -> value. Raises `jinja2.UndefinedError` for a name in the template without a value.
    """
    plots = [*drawn, *(plot for section in sections for part in section.parts for plot in part.plots)]
    style = _bare(_template_text("style.css")) + stylesheet(plots)
    inline = {"style": style, "style_digest": _digest(style), "script": script(), "script_digest": _digest(script())}
    return _environment().get_template(template).render(**inline, sections=sections, **values)


@cache
def script() -> str:
    """Return the script that every page contains."""
    return _bare(_template_text("script.js"))


def _bare(code: str) -> str:
    """Return a script or style sheet without indentation and comment lines, which only readers need."""
    lines = (line.strip() for line in code.splitlines())
    return "\n".join(line for line in lines if line and not re.match(r"//|/\*.*\*/$", line)) + "\n"


def _digest(text: str) -> str:
    """Return the digest with which the page's content security policy allows an inline script or style."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _template_text(name: str) -> str:
    return files("harness.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_template_text),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_fit,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(line=line, sentence=sentence)
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(text: str) -> Markup:
    """Return the text of a cell for HTML. In a narrow column it may break after an underscore, not within a word."""
    from markupsafe import Markup, escape

    return escape(listing(text)).replace("_", Markup("_<wbr>"))


def _fit(value: object) -> object:
    """Return a text made printable and shortened. Return any value that is not a text, or is marked as safe, unchanged.

    Jinja calls this function for every value that a template writes into the page.
    """
    from markupsafe import Markup

    return value if isinstance(value, Markup) or not isinstance(value, str) else listing(value)
