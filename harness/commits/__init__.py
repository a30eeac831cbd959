"""Two commits of a user's repository against each other: the one that stands there, and the one of a baseline."""
