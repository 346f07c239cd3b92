"""Texts with their words by hand, tokenizers of every kind built in memory, made-up tokens, and a loop that merges."""

from functools import cache

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from manyheads.texts import Tokens

FAMILY = "👨\u200d👩\u200d👧\u200d👦"
ENGLAND = "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
CAFE = "cafe\u0301"  # decomposed: e and a combining accent
WORDS_OF = {  # every text and its words by the default way, written by hand
    "The cat didn't sit.": ["The", "cat", "didn't", "sit", "."],
    "dogs’ well-known 'bone' - rock’n’roll": ["dogs", "’", "well-known", "'", "bone", "'", "-", "rock’n’roll"],
    "tabs\tand\n\nnew\r\n lines\u00a0\u3000\u200bend": ["tabs", "and", "new", "lines", "end"],
    "pay $1,000.50, not 3.14.": ["pay", "$", "1,000.50", ",", "not", "3.14", "."],
    "v.2 and a,1": ["v", ".", "2", "and", "a", ",", "1"],
    "https://a.b/c?d=1": ["https", ":", "/", "/", "a", ".", "b", "/", "c", "?", "d", "=", "1"],
    "wait... what?!": ["wait", ".", ".", ".", "what", "?", "!"],
    f"a {FAMILY}{FAMILY} b": ["a", FAMILY, FAMILY, "b"],
    "👍🏽👍 ❤️🔥": ["👍🏽", "👍", "❤️", "🔥"],
    "🇫🇷🇩🇪🇮 ok": ["🇫🇷", "🇩🇪", "🇮", "ok"],
    f"{ENGLAND}1️⃣#️⃣ 🙂\u200d↔️": [ENGLAND, "1️⃣", "#️⃣", "🙂\u200d↔️"],
    f"{CAFE} {CAFE}'s =\u0338x": [CAFE, f"{CAFE}'s", "=\u0338", "x"],
    "مرحبا، بالعالم!": ["مرحبا", "،", "بالعالم", "!"],
    "नमस्ते दुनिया। क्\u200dष": ["नमस्ते", "दुनिया", "।", "क्\u200dष"],
    "我爱你，世界。ok": ["我爱你", "，", "世界", "。", "ok"],
    "snake_case x-y- --z a--b": ["snake", "_", "case", "x-y", "-", "-", "-", "z", "a", "-", "-", "b"],
    "": [],
    " \n": [],
}
TEXTS = [text for text in WORDS_OF if text.strip()]
CORPUS = [*TEXTS, "The cat sat on the mat.", "They didn't see the well-known dogs."] * 3
BYTE_KINDS = ("gpt2", "gpt2 trimmed", "bytes")
KINDS = ("wordpiece", *BYTE_KINDS, "unigram", "byte fallback")
MARKS = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2}


@cache
def tokenizer(kind):
    """A tokenizer of this kind, with [CLS] and [SEP] around a text."""
    alphabet, more = pre_tokenizers.ByteLevel.alphabet(), {"special_tokens": list(MARKS), "show_progress": False}
    after = []
    if kind == "wordpiece":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=230, continuing_subword_prefix="##", **more)
    elif kind in BYTE_KINDS:
        made = Tokenizer(models.BPE())
        trimmed = kind == "gpt2 trimmed"
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=trimmed, use_regex=kind != "bytes")
        after = [processors.ByteLevel(trim_offsets=trimmed)]
        size = 259 if kind == "bytes" else 400
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, **more)
    elif kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=160, unk_token="[UNK]", **more)
    else:
        letters = ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁t", "▁th", "▁the"]
        vocabulary = MARKS | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
        vocabulary |= {letter: len(vocabulary) + at for at, letter in enumerate(letters)}
        merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
        made = Tokenizer(models.BPE(vocabulary, merges, unk_token="[UNK]", byte_fallback=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.ByteFallback()
        trainer = None
    if trainer is not None:
        made.train_from_iterator(CORPUS, trainer)
    around = [(name, MARKS[name]) for name in ("[CLS]", "[SEP]")]
    after.append(processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around))
    made.post_processor = processors.Sequence(after)
    return made


def made_up(lengths, seed=0):
    """Tokens of made-up texts of words of 1 to 4 pieces of two letters, with a special token at either end."""
    draw, longest = np.random.default_rng(seed), max(lengths)
    offsets = torch.zeros(len(lengths), longest, 2, dtype=torch.long)
    special = torch.zeros(len(lengths), longest, dtype=torch.bool)
    texts, pieces = [], []
    for row, length in enumerate(lengths):
        text, left = "", 0
        special[row, 0] = special[row, length - 1] = True
        for token in range(1, length - 1):
            if left == 0:
                text, left = text + " " * (token > 1), int(draw.integers(1, 5))
            offsets[row, token] = torch.tensor((len(text), len(text) + 2))
            text, left = text + "ab", left - 1
        texts.append(text)
        pieces.append(tuple("<s>" if one else "ab" for one in special[row, :length].tolist()))
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    return Tokens(torch.tensor(lengths), ids, tuple(pieces), special, offsets, tuple(texts))


def naive_merge(weights, rows, columns, how):
    """The double loop: weights [q, k], groups of row indices, groups of column indices."""
    out = np.zeros((len(rows), len(columns)))
    for i, members in enumerate(rows):
        mass = np.mean([sum(weights[r, c] for group in columns for c in group) for r in members])
        for j, group in enumerate(columns):
            sums = [sum(weights[r, c] for c in group) for r in members]
            out[i, j] = {"mean": np.mean(sums), "first": sums[0], "max": max(sums)}[how]
        if how == "max" and out[i].sum() > 0:
            out[i] *= mass / out[i].sum()
    return out


def words_in(words, text=0):
    return [words.texts[text][begin:end] for begin, end in words.spans[text]]


def made_of(text, offsets):
    """Tokens with these offsets, none special."""
    n = len(offsets)
    pieces = tuple(text[begin:end] for begin, end in offsets)
    return Tokens(
        torch.tensor([n]), torch.zeros(1, n, dtype=torch.long), (pieces,), torch.zeros(1, n, dtype=torch.bool),
        torch.tensor([offsets]), (text,),
    )  # fmt: skip
