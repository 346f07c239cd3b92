"""Pictures: matplotlib, no screen needed."""
