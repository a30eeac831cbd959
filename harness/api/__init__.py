"""The Python API that the command line and pytest call: verify, drill, and judge again."""
