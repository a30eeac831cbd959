"""Drive trainers of libraries from outside, without changes to the libraries."""
