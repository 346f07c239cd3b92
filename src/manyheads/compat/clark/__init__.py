"""Clark, Khandelwal, Levy, Manning 2019, "What does BERT look at?": their measurements, as their code has them.

    syntax_accuracies       heads as predictors of a treebank's arcs (section 4.2, Table 1)
    coreference_accuracies  heads as predictors of antecedents (section 4.3, Table 2; from the paper: there is no code)
    attention_masses        mean attention to [CLS], [SEP], stops and commas, self, left, right (sections 3.1, 3.2)
    entropies               how broadly heads attend (section 3.3)
    head_distances          Jensen-Shannon divergence between heads (section 6)
    word_attention          a map of pieces as a map of words (section 4.1)

The paper and its code differ in places, and the code in places from what it seems to mean: `QUIRKS` names them,
and every function takes `quirks=True` (all of them, as published), False, or some by name.
"""

from manyheads.compat.clark.accuracies import (
    BestHead,
    CoreferenceScores,
    SyntaxScores,
    coreference_accuracies,
    syntax_accuracies,
)
from manyheads.compat.clark.general import Entropies, HeadDistances, attention_masses, entropies, head_distances
from manyheads.compat.clark.words import QUIRKS, word_attention

__all__ = [
    "QUIRKS",
    "BestHead",
    "CoreferenceScores",
    "Entropies",
    "HeadDistances",
    "SyntaxScores",
    "attention_masses",
    "coreference_accuracies",
    "entropies",
    "head_distances",
    "syntax_accuracies",
    "word_attention",
]
