"""Record training loops that the harness does not drive, and compare the recordings later."""
