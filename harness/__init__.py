"""Contract verification for GPU-training optimizations: contract in, runs, evidence, verdict, report out."""

__version__ = "0.1.0"
