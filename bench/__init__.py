"""Benchmarks: figures as tables, never assertions. What they print goes to docs/LOG.md with machine and commit."""
