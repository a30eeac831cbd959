"""Split a gate or a drill into shards, and run them as jobs on Slurm or on this machine's GPUs. The library submitit
submits the jobs."""
