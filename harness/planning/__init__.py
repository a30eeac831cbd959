"""Turn contracts into units and runs, and find what this machine cannot decide."""
