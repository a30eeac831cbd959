"""Run trainers of libraries step by step for the harness, without changes to the libraries."""
