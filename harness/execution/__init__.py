"""Start worker processes under a supervisor, and execute arms, probes and watchers in them."""
