"""Heads removed for good: which sets a model can lose, the cut, and its verification."""
