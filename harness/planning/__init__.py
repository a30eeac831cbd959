"""From contracts to units and runs, and what this machine cannot decide."""
