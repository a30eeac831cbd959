"""Execute runs. A probe is one way of executing a run and recording evidence. `harness/kinds/probes.py` lists all
probes, and each module in this folder implements one or more of them."""
