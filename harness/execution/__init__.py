"""Start worker processes under a supervisor. The workers execute the runs: a run's probe, its arms and the watchers."""
