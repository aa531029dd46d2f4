"""Measurements, each run as ``python -m benchmarks.NAME``; ``--json`` prints one object instead of a table."""
