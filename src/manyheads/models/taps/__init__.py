"""Taps: every attention call of a model becomes an `AttentionCall`, by three ways in."""
