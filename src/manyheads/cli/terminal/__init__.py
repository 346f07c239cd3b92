"""The terminal: console, colours, columns and progress."""
