"""Record training loops that run without the harness, and compare the recordings later."""
