"""What can be trained by name: a module a preset, and the table that lists them."""
