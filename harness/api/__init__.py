"""The Python API: plan, run, judge and write; the command line and pytest translate to it."""
