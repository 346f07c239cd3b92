"""Where the weights of each head lie in a model, how to cut them, and the compact form on disk."""
