"""The pages of the lessons: NAME.md is the prose, name.py its cells, checks and facts."""
