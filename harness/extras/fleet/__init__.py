"""Run a gate or a drill in parts, called shards, as jobs on Slurm or on the GPUs of this machine. The library submitit
submits the jobs."""
