"""A gate or a fire drill over several GPUs of one machine, in shards."""
