"""What a reviewer sees of a page on a laptop before scrolling, without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser
from first_screen import first_screen
from published_pages import REPORTS, judged_run
from report_views import drill_view, small_view, verdict

from harness.judge.verdict import Figure, Status, Verdict
from harness.report.html import render
from harness.report.view import ReportView

CONTRACT = "cuda-graph-backward-v1"
ENVIRONMENT = {
    "git": {"commit": "4afac30f0e0c2a1d"},
    "trainers": {"reference_impl.system:QLoRASystem": {"commit": "9b1c" * 10 + "+changes"}},
    "gpu": {"name": "NVIDIA H200"},
}
