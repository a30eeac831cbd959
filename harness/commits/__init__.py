"""Compare two commits of a user's repository: the one that is checked out, and the baseline's commit."""
