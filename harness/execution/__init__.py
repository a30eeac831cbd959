"""Start the worker processes that execute runs, and end them when they exceed a limit. A worker executes the arms of a
run and observes them."""
