"""Provide code that all judges share: checks of a comparison, the sheet of figures, reason codes, and the registry."""
