"""A backup head that was built by hand is found, with what it says and when; others are not."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

import manyheads as mh
from manyheads.heads import Head
from manyheads.roles import backup_heads

NAMES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *["cat", "dog", "sat", "ran", "on", "the", "a", "mat", "king", "queen"])
V, H, D = len(NAMES), 3, len(NAMES) + 1
M, ANSWER, FLAG, ONE = 2 * V + 2, V, 2 * V, 2 * V + 1  # a token's own axis, the answer's, "it has been said", always 1
WORKER, BACKUP = Head("", 0, 0), Head("", 1, 1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = mh.MultiHeadAttention(M, H, head_dim=D, bias=False, batch_first=True)

    def forward(self, x, hidden):
        return x + self.attention(x, key_padding_mask=hidden, need_weights=False)[0]


class Built(nn.Module):
    """It says every word again. L0H0 copies the word to the answer, and says that it did.

    Wherever that has been said, L1H1 looks at [CLS], of which it copies nothing; where it has not, it copies the word.
    Other heads say a little anything.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, input_ids, attention_mask):
        ones = torch.ones(*input_ids.shape, 1)
        x = torch.cat([nn.functional.one_hot(input_ids, V).float(), torch.zeros(*input_ids.shape, V + 1), ones], -1)
        for layer in self.layers:
            x = layer(x, attention_mask == 0)
        return 8 * x[..., ANSWER:FLAG]


def built(fresh):
    model = Built().eval()
    words = range(4, V)
    with torch.no_grad():
        for layer, head in ((0, 0), (1, 1)):
            attention = model.layers[layer].attention
            for weight in attention.parameters():
                weight.normal_(std=0.03, generator=fresh)
            q, k, v = attention.qkv_proj.weight.view(3, H, D, M)[:, head].zero_()
            out = attention.out_proj.weight.view(M, H, D)[:, head].zero_()
            for word in words:
                q[word, word] = k[word, word] = 9
                v[word, word] = out[ANSWER + word, word] = 1
            if layer == 0:
                v[V, ONE] = out[FLAG, V] = 1
            else:
                q[V, FLAG], k[V, NAMES.index("[CLS]")] = 12, 12
    backend = Tokenizer(models.WordLevel({name: at for at, name in enumerate(NAMES)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return mh.load(model, tokenizer=PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]"))


def unsaid(logits, inputs):
    """How surely each text's words are not said again: the mean cross-entropy."""
    ids = inputs["input_ids"]
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    words = (ids > 3).float()
    return (losses * words).sum(1) / words.sum(1)


def sentences(fresh, count=40):
    words = NAMES[4:]
    drawn = [torch.randperm(len(words), generator=fresh)[: 5 + at % 5] for at in range(count)]
    return [" ".join(words[word] for word in each) for each in drawn]


def test_a_head_that_does_anothers_work_only_when_it_is_gone_is_found(fresh):
    lm, texts = built(fresh), sentences(fresh, 24)
    found = backup_heads(lm, texts, WORKER, metric=unsaid, kind="zero", controls=2)
    backup, *others = sorted(found.changes, key=lambda each: -each.interaction)
    assert backup.head == BACKUP == found.backups[0].head and backup.q < 0.01 and backup.low > 1
    assert backup.interaction > 10 * max(abs(each.interaction) for each in others)
    assert abs(backup.alone) < 0.1 < 1 < backup.without, "alone it is worth nothing: its work is done already"
    assert abs(found.effect) < 0.1, "and nothing is lost without the worker, whose work it does"
    assert max(backup.control) < 0.1
    assert backup.moved > 0.4 and backup.moved_q < 0.05 and max(backup.moved_control) < 0.01
    assert all(each.moved < 0.05 for each in others)
    assert "L1H1" in repr(found)


def test_a_mean_in_the_workers_place_goes_on_saying_that_it_is_said(fresh):
    """The kind must be said: the flag is in the mean, so the backup is not called, and the work is lost."""
    lm, texts = built(fresh), sentences(fresh, 12)
    found = backup_heads(lm, texts, "L0H0", metric=unsaid, controls=0)
    assert found.kind == "mean" and found.notes["corpus"].startswith("the texts themselves")
    assert found.effect > 1 and abs(found[BACKUP].interaction) < 0.1 and found[BACKUP].moved < 0.1
