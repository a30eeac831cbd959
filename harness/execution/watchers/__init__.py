"""What a probe adds to the life of an arm: each watches one thing and writes its record."""
