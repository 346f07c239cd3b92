"""Architectures by model type: each row says how the fields of a config.json become dimensions."""
