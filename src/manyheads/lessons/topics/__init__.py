"""What lessons run and ask: a module or two a topic, each with the tables CELLS, CHECKS and FACTS that it needs."""
