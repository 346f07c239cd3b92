"""Architectures: their parts, and by model type how the fields of a config.json become dimensions."""
