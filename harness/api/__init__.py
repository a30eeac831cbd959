"""Plan, run, judge and write: the Python API, to which the command line and pytest translate."""
