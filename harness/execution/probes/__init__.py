"""Execute runs: this folder has the modules of the probes that the table of probes names."""
