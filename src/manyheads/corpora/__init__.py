"""Texts to measure heads on: the bundled page of prose."""
