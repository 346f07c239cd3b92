"""The reproductions by name, in the order of their list; none is loaded before it is chosen."""

from __future__ import annotations

from manyheads.lab.training.presets.table import listing

REPRODUCTIONS = listing(
    ("gu-sinks", "Gu et al. 2025: heads park on the first token under softmax, and not under sigmoid attention",
     "8 minutes"),
    ("gu-real", "Gu et al. 2025: most heads of a pretrained model park on the first token, whatever stands there",
     "10 minutes"),
    ("olsson-induction", "Olsson et al. 2022: a language model's induction heads copy, and complete what came before",
     "14 minutes"),
    ("wang-ioi", "Wang et al. 2022: a circuit of few heads, each with its part, names the one who is given something",
     "minutes"),
    ("wu-retrieval", "Wu et al. 2024: few heads of a pretrained model fetch a needle, and without them it finds none",
     "15 minutes"),
    ("clark-syntax", "Clark et al. 2019: single heads link the words of a relation, in a causal model as in an encoder",
     "4 minutes; it reads a FILE"),
    ("olsson-phase", "Olsson et al. 2022: induction heads form in one short stretch, with two layers and not with one",
     "6 minutes"),
    ("zhai-collapse",
     "Zhai et al. 2023: at too high a learning rate attention entropy collapses; a reparametrisation cures",
     "3 minutes"),
    ("kimi-clip", "Kimi Team 2025: under Muon the largest logits pass 1,000; QK-clip caps them at no cost in loss",
     "6 minutes"),
    ("michel-curve", "Michel et al. 2019: a fifth or more of the heads go for free, least important first",
     "6 minutes"),
    ("michel-real", "Michel et al. 2019: how many heads of a pretrained model go, least important first, on prose",
     "10 minutes"),
    ("voita-gates", "Voita et al. 2019: gates with an L0 price close most heads, and specialised ones last",
     "3 minutes"),
    ("wu-masking", "Wu et al. 2024: without its retrieval heads a model retrieves nothing, without others it does",
     "6 minutes"),
    ("xiao-duo", "Xiao et al. 2024: half of the key/value heads keep everything, chosen on needles; the others stream",
     "6 minutes"),
    ("gqa-uptrain", "Ainslie et al. 2023: the mean of key/value heads is the best beginning for fewer of them",
     "3 minutes"),
    ("ainslie-uptrain", "Ainslie et al. 2023: key/value heads copied, merged and trained on in a pretrained model",
     "minutes"),
    ("wu-scores", "Wu et al. 2024: less than 5 % of heads retrieve; counts those of a published file of scores",
     "seconds; it reads a FILE"),
)  # fmt: skip
