"""The command line: a file a command, each translating to the Python API."""
