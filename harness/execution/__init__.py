"""Worker processes and what happens in them: arms, probes and watchers, under a supervisor."""
