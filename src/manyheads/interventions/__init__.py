"""What a head is worth: plans carried out, effects, importance, and heads removed for good."""
