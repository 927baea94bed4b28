"""Measurements, `python -m benchmarks.NAME [--quick] [--json]`; what they found is kept as dated files in results/."""
