"""Start processes of the harness. A kept process has a keeper: a process that ends the kept process and all its
descendants."""
