"""Optional parts that only the command line imports."""
