"""Provide code that all judges share: checks of a comparison, the sheet that collects figures, reason codes, and the
registry of judges."""
