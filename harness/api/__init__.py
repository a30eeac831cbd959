"""The Python API: verify contracts, drill them, and judge runs again. The command line and pytest call it."""
