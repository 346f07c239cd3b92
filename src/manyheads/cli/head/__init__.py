"""`manyheads head`: one head, on a text or a picture."""
