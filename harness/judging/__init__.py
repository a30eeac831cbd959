"""Provide what all judges share: the checks of a comparison, the sheet, the reason codes and the registry."""
