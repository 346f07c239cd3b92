"""Benchmarks: each figure a command, peers side by side in one run. `make bench` runs them all."""
