"""Plans carried out on a model while it runs."""
