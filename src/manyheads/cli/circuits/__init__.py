"""`manyheads attribute`, `patch` and `circuit`: which heads an answer depends on."""
