"""Start processes of the harness. A kept process runs under a keeper, which ends all its descendants."""
