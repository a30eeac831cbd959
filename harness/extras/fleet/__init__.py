"""Run a gate or a fire drill in shards, as jobs of an engine: Slurm, or this machine's GPUs; submitit submits them."""
