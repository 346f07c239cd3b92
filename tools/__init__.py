"""Checks of the source and pages that are made of it; nothing here is shipped."""
