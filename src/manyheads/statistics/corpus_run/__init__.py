"""A run over a corpus: measured in parts, resumable, shared by several processes."""
