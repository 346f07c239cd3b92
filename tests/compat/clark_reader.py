"""The small BERT that reads made-up sentences in tests of Clark et al.'s measurements: random weights, WordPiece."""

from __future__ import annotations

import string
from functools import cache

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import manyheads as mh
from tests.models.tiny import tiny_bert

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WHOLE = ("the", "cat", "king", "she", "saw", "mary", "hat", "of", "it")


@cache
def reader():
    """WordPiece, as BERT's: some words whole, all others letter by letter; marks are words of their own."""
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase), ".", ",", "'"]
    vocabulary = {piece: number for number, piece in enumerate((*SPECIAL, *WHOLE, *letters))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    around = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def small_bert():
    return mh.load(tiny_bert(vocab_size=len(reader()), max_position_embeddings=48), tokenizer=reader())
