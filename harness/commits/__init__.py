"""Compare two commits of a user's repository: the commit that is checked out, and the commit of the baseline."""
