"""Optional parts of the harness, which only the command line imports."""
