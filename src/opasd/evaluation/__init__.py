"""Evaluate models on benchmarks."""
