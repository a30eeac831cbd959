"""Streams, signals, paths and caches of the machine."""
