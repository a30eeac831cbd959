"""Simulate the published error rates again, and check that they are equal in every digit and within their bounds.

The simulation uses the current judges and the published seed and number of experiments. If another version of numpy
draws other numbers, publish new rates with tools/statistics/error_rates.py and seed_error_rates.py.
"""

from __future__ import annotations

import sys

import error_rates
import seed_error_rates

if __name__ == "__main__":
    found = [report.check() for report in (error_rates.REPORT, seed_error_rates.REPORT)]
    print("; of seeds ".join(figures for figures, _ in found))
    sys.exit(0 if all(sound for _, sound in found) else 1)
