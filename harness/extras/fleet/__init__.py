"""Run a gate or a drill in shards, as jobs of an engine: Slurm, or this machine's GPUs. submitit submits the jobs."""
