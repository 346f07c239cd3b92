"""The report of roles: one HTML file, and its figures for paper."""
