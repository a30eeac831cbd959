"""Execute runs: one module for each probe of the table of probes."""
