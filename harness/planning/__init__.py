"""Turn contracts into units and runs, and find which units this machine cannot decide."""
