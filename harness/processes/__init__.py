"""Start processes of the harness. A kept process is watched by a keeper, a process that ends all descendants of it."""
