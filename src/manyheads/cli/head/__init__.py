"""`manyheads head`: one head on one text."""
