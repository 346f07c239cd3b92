"""A GGUF file as a model of transformers: what it says, its numbers, its family and its tokenizer."""
