"""Loops that the harness does not drive: recorded while they train, and compared later."""
