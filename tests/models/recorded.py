"""What those share who test the recorder: lengths of padded texts, and texts of random words."""

import torch

from tests.models.tiny import WORDS

LENGTHS = (11, 7, 13, 1)


def some_text(fresh, num_words):
    return " ".join(WORDS[i] for i in torch.randint(len(WORDS), (num_words,), generator=fresh).tolist())
