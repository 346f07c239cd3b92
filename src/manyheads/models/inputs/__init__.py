"""What a model reads: texts, pictures and sounds, positions, and what it generates."""
