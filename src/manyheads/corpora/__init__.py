"""Texts to measure heads on: files, folders, treebanks, datasets of the hub, and the bundled pages."""
