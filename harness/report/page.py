"""A page without scripts or outside requests: the templates, the style, and the policy that allows nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from harness.report.blocks import Section
from harness.report.svg import stylesheet
from harness.report.text import clean, line, sentence

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(template: str, sections: Sequence[Section], **values: Any) -> str:
    """Render a template of this package. A name the template lacks a value for raises `jinja2.UndefinedError`."""
    plots = (plot for section in sections for part in section.parts for plot in part.plots)
    style = _template_text("style.css") + stylesheet(plots)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _environment().get_template(template).render(style=style, style_digest=digest, sections=sections, **values)


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
    return environment


def _fit(value: object) -> object:
    """The last gate before the page: whatever a section let through is cleaned and bounded here."""
    from markupsafe import Markup

    return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value, 6000)
