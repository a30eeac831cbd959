"""Turn contracts into units and runs, and find the units that cannot be decided on this machine."""
