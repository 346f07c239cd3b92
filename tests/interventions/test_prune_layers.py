"""Layers in which a head's weights do not stand apart are refused by name; of ours all that belongs to a head goes."""

import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel, DeepseekV3Config, DeepseekV3Model, Olmo2Config, Olmo2Model

import manyheads as mh
from manyheads.errors import ModelError
from manyheads.interventions import prune_heads
from tests.interventions.checkpoints import BERT, DECODER, assert_same, by_hand, enliven


def small_one(cls, config):
    with torch.no_grad():
        model = cls(config).eval()
        enliven(model)
    return mh.load(model, tokenizer=False)


def test_a_norm_over_all_heads_together_is_refused_by_name():
    lm = small_one(Olmo2Model, Olmo2Config(**{**DECODER, "head_dim": 8}))
    with pytest.raises(ModelError, match="layers.0.self_attn.*its q_norm norms all heads together.*Zero these heads"):
        prune_heads(lm, "L0H0-1")


def test_latent_attention_is_refused_by_name():
    sizes = {"q_lora_rank": 24, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
    config = DeepseekV3Config(
        **{**DECODER, **sizes, "num_key_value_heads": 6, "n_routed_experts": 4, "num_experts_per_tok": 2,
           "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1}
    )  # fmt: skip
    del config.head_dim
    with pytest.raises(ModelError, match=r"layers.0.self_attn' \(DeepseekV3Attention\) is latent attention"):
        prune_heads(small_one(DeepseekV3Model, config), "L0H0")


def test_layers_that_share_their_weights_are_refused_whichever_is_meant():
    lm = small_one(AlbertModel, AlbertConfig(**{**BERT, "embedding_size": 24}))
    for layer in (0, 1):
        with pytest.raises(ModelError, match=f"L{layer} is one of several layers .* that share the module"):
            prune_heads(lm, {layer: [1]})


class Reader(nn.Module):
    """The least that can be loaded: embeddings, and one layer of somebody's."""

    def __init__(self, layer):
        super().__init__()
        self.embed, self.layer = nn.Embedding(19, 20), layer

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.layer(x, x, x, need_weights=False)[0]


def test_torchs_own_layer_is_refused_and_ours_can_be_cut():
    torchs, ours = nn.MultiheadAttention(20, 4, batch_first=True), mh.MultiHeadAttention(20, 4, 2, batch_first=True)
    with pytest.raises(ModelError, match="torch's own layer takes the width of a head to be embed_dim / num_heads"):
        prune_heads(mh.load(Reader(torchs).eval(), tokenizer=False), "L0H0")
    lm = mh.load(Reader(ours).eval(), tokenizer=False)
    small = prune_heads(lm, "L0H0-1")
    assert small.model.layer.num_heads == 2 and small.model.layer.num_kv_heads == 1
    assert_same(small.model, by_hand(lm.model, "out_proj", lm.spec.sites, small.removed))


@pytest.mark.parametrize(
    "options",
    [
        *[{name: True} for name in ("sinks", "head_scale", "qk_norm", "add_bias_kv")],
        {"projections": "split"},
        {"scale": [0.1, 0.2, 0.3, 0.4]},
    ],
    ids=lambda each: next(iter(each)),
)
def test_what_belongs_to_a_head_of_our_own_layer_goes_with_it(options):
    layer = mh.MultiHeadAttention(20, 4, batch_first=True, **options).eval()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    lm = mh.load(Reader(layer).eval(), tokenizer=False)
    small = prune_heads(lm, "L0H1, L0H3")
    assert_same(small.model, by_hand(lm.model, "out_proj", lm.spec.sites, small.removed))
    with pytest.raises(ModelError, match="ALiBi's slopes follow from the number of heads"):
        prune_heads(mh.load(Reader(mh.MultiHeadAttention(20, 4, alibi=True)).eval(), tokenizer=False), "L0H1")
