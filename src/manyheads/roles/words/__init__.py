"""Roles in words and colours: the table of roles, the glossary, and what is said of a claim."""
