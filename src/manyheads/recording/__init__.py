"""What was recorded of a model, and the one pass that answers questions about it."""
