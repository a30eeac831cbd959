"""Start processes of the harness. A kept process has a keeper: a process that ends all of its descendants."""
