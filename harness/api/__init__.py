"""Verify, drill and judge again: what the command line and pytest call."""
