"""Probes: inputs made for one question, such as random repeats, copying and retrieval."""
