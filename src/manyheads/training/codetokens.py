"""A small byte-level BPE vocabulary, made of the training modules: no text is unknown to it, none is lost.

Two tokens are special: `<|begin|>`, which stands before every text, and `<|end|>`, behind a module.
Source: Sennrich et al. 2016 (BPE); Radford et al. 2019 (over bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BEGIN, END = "<|begin|>", "<|end|>"
BEGIN_ID, END_ID = 0, 1
SPECIAL_TOKENS = (BEGIN, END)


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """A `tokenizers.Tokenizer` of that many tokens. The same texts give the same vocabulary. Cost: 3 s for 9 MB."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    return tokenizer


def as_transformers(tokenizer: Any, max_positions: int) -> Any:
    """The same as transformers loads it: `<|begin|>` begins, `<|end|>` ends and pads."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        model_max_length=max_positions,
        clean_up_tokenization_spaces=False,
    )
