"""Why a head looks there: `why` explains one weight of one head on one text.

The scale of every norm is held at its value in the run. Then the query of a token is a sum over what was written at
that token (embeddings, each earlier head and feed-forward, biases), and so is each key; their product, a table of
pairs. `why` gives its two margins, exact against the model's own q . k, with what the weight would be without each
writer, and where each head among them looked itself: one step, and the next on request (`Why.further`).

Sources: Elhage et al. 2021 (the query-key circuit); Kamath et al. 2025 (scores are bilinear in what is written); Sun et
al. 2024 (massive activations).
"""

from __future__ import annotations

from typing import cast, overload

from manyheads.circuits.why.means import Where, WhyMeans, why_means
from manyheads.circuits.why.reading import TextOrRecording, head_of
from manyheads.circuits.why.weight import Against, Why, explain
from manyheads.errors import StatisticError
from manyheads.heads import HeadLike
from manyheads.inputs import InputsLike
from manyheads.models import LoadedModel
from manyheads.recording import Recording


@overload
def why(
    lm: LoadedModel,
    text: TextOrRecording,
    head: HeadLike,
    query: str | int = -1,
    key: str | int | None = None,
    against: Against = "rest",
) -> Why: ...


@overload
def why(lm: LoadedModel, text: InputsLike, head: HeadLike, *, where: Where) -> WhyMeans: ...


def why(
    lm: LoadedModel,
    text: TextOrRecording | InputsLike,
    head: HeadLike,
    query: str | int = -1,
    key: str | int | None = None,
    against: Against = "rest",
    *,
    where: Where | None = None,
) -> Why | WhyMeans:
    """Why a head looks from one token to another: its log-odds, split over what wrote the query and the keys.

    - `lm`: a loaded model.
    - `text`: one text (with its target, of an encoder-decoder), or a recording of one by this model. With `where`,
      texts.
    - `head`: as "L12H3".
    - `query`: the token that looks, as it is spelt (" to") or its position; from the end below 0.
    - `key`: the token that is looked at; None: the one with the largest weight.
    - `against`: all other keys together ("rest"), or one token: where a text has two candidates, or where the first
      token is the rival.
    - `where`: over texts, in place of one query and key: means of contrasts over all rows of a kind, "induction" (from
      a token to the one after its last occurrence), "previous", "first", "largest" (to each token's largest weight), or
      a function of a text's tokens that gives pairs (query, key). See `WhyMeans`.

    Cost: one forward pass as far as the head's layer, a backward pass along the stream for each side, and one through
    the layer alone for each dimension of the head; with norms in the stream itself (BERT) these go along all of it, and
    a forward pass for each writer says what the weight would be without it. Errors: TextError for tokens that are not
    in the text, or there several times, or hidden by the mask; HeadError; RecordingError for another model's recording;
    ModelError by name where the split would not be exact; GuardError. Sources: see the module.
    """
    if where is None:
        if not isinstance(text, str | tuple | Recording):
            raise StatisticError(
                f"why explains one weight of one text, and was given a {type(text).__name__}: give a text, or where= "
                f"for means over the rows of texts."
            )
        return explain(lm, cast("TextOrRecording", text), head, query, key, against)
    if query != -1 or key is not None or against != "rest":
        raise StatisticError("where= chooses the rows: leave query=, key= and against= out.")
    if isinstance(text, Recording):
        raise StatisticError("where= reads texts, and was given a recording: give the texts themselves.")
    of_head = head_of(lm, head)
    return why_means(lm, text, of_head, where)[of_head]
