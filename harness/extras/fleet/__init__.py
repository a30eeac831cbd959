"""Run a gate or a drill in parts (shards), as jobs on Slurm or on this machine's GPUs. submitit submits the jobs."""
