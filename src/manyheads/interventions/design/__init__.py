"""Heads made to order: patterns, the weights that produce them, and a model of such heads."""
