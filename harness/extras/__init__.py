"""Optional parts: the command line alone imports them."""
