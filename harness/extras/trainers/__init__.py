"""Drive the trainers of libraries from outside."""
