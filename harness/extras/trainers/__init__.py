"""Drive libraries' trainers from outside."""
