"""Observe an arm while a probe trains it. Each watcher observes one property of the arm and writes a record."""
