"""Sums that add: what one batch adds, what many come to, and the intervals of their means."""
