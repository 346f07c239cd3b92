"""Small models as one describes them to `size`: a Llama's config, and a description of one's own."""

GIB = 2**30
LLAMA = {
    "model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 97,
    "intermediate_size": 56, "num_key_value_heads": 2, "head_dim": 10,
}  # fmt: skip
OWN = {"num_layers": 3, "embed_dim": 48, "num_heads": 6, "num_kv_heads": 2, "head_dim": 10, "vocab_size": 97}
