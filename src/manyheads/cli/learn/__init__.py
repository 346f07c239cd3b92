"""`manyheads learn`: the lessons in the terminal."""
