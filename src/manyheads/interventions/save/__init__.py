"""Pruned and converted models as checkpoints, tried in a fresh process before they are handed out."""
