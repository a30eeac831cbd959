"""Judge finished run directories again, redact them, or show several on one page."""
