"""Small models of every kind of attention, by name, and each with the implementations that it can be run by."""

import pytest

from tests.models.odd import tiny_gpt_oss, tiny_t5
from tests.models.tiny import tiny_bert, tiny_gemma2, tiny_gpt2, tiny_llama

MAKERS = {
    "bert": tiny_bert,
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,  # GQA: 6 heads over 3
    "mqa": lambda **how: tiny_llama(1, **how),
    "gemma2": tiny_gemma2,  # softcap, a scale of its own; a window of 7, shorter than the texts
    "gpt_oss": tiny_gpt_oss,  # sinks in the denominator: rows sum to less than 1
    "t5": tiny_t5,
}
CASES = [
    *[(name, attention) for name in ("minilm", "bert", "gpt2", "llama", "mqa") for attention in ("sdpa", "eager")],
    ("gemma2", "eager"),  # sdpa has neither softcap
    ("gpt_oss", "eager"),  # nor sinks
]
every_case = pytest.mark.parametrize(("name", "attention"), CASES)
