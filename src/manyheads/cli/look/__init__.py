"""`manyheads look`: every head of a model in one table."""
