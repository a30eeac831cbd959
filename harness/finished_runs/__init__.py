"""Run directories that exist: judged again, redacted, or several on one page."""
