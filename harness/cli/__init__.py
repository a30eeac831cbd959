"""Translate the command line to the Python API: one file for each command."""
