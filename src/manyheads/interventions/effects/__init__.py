"""What a plan or a single head changes: effects, importance, and the curve of heads removed one after another."""
