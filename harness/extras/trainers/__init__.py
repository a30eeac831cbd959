"""Libraries' trainers, driven from outside."""
