"""Watch an arm for a probe: each watcher watches one thing and writes its record."""
