"""Watch an arm for a probe. Each watcher observes one thing and writes a record of it."""
