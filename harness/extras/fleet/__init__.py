"""A gate or a fire drill in shards, as jobs of an engine: Slurm, or the GPUs of this machine; submitit submits them."""
