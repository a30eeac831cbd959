"""Hold the optional parts: the command line alone imports them."""
