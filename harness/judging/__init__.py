"""What judges share: the checks of a comparison, the sheet, the reasons and the registry."""
