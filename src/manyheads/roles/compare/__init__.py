"""Heads compared with each other: clusters of alike heads, and backup heads."""
