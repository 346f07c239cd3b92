"""Small models of our own layers, trained here: one loop, and presets that each show one thing about heads."""
