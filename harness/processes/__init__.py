"""Processes that the harness starts: each stands under a keeper, and leaves no process behind."""
