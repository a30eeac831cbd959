"""Ways to execute a run, a module a probe, as the table of probes names them."""
