"""`manyheads look`: every head of a model, on a text, and who looks at one word."""
