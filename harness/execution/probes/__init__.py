"""Execute runs. Each module in this folder implements one or more probes of the table in `harness/kinds/probes.py`."""
