"""Translations by how many heads: the paper's table, and the figures that circulate in its place.

Apart from the training that they stand beside, which imports torch: a lesson cites them without it.
"""

PAPER_BLEU = {1: 24.9, 4: 25.5, 8: 25.8, 16: 25.8, 32: 25.4}
"""Heads -> BLEU on newstest2013, English to German, of models of about 65 million parameters. Source: Vaswani et al.
2017, table 3, rows (A)."""
CIRCULATING_BLEU = {1: 25.8, 2: 27.1, 4: 27.5, 8: 28.0, 16: 28.0}
"""Figures that circulate as that table, and are not in the paper."""
