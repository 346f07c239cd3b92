"""Why a head looks from one token to another, as the page asks it: the library's answer, and one sentence of it."""

from __future__ import annotations

import shlex
from typing import Literal

from manyheads.base import percent, plural
from manyheads.circuits.why import LEAST_SHARE, NO_STORY, Look, Place, Why, WriterShare, why
from manyheads.models import LoadedModel
from manyheads.recording import Recording
from manyheads.studio.problems import NotHere, TooLarge
from manyheads.studio.schema.explained import WhyAnswer, WhyLook, WhyPair, WhyPlace, WhyRow, WhyWriter
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace
from manyheads.studio.views.outputs import model_of

MOST_TOKENS = 1_024  # of a text: the graph of a pass over it is held while it is explained
SAME = 2e-3  # of a weight: between the recording and the pass that explains it
ROWS = {
    "sink": "the learned sink, which nothing writes",
    "softcap": "the softcap",
    "position bias": "the bias of this distance",
    "rounding": "rounding",
}
Against = Literal["rest"] | int


def why_of(
    workspace: Workspace, opened: Opened, head: str, query: int, key: int, against: Against = "rest", text: int = 0
) -> WhyAnswer:
    """The answer about one cell of a head's map. It needs the model; see `mh.why` for what it costs.

    Errors: NotHere for what the recording has not, or where its model is not loaded; TooLarge for a long text; those of
    `mh.why`.
    """
    layer, index = opened.layer_of(head)
    opened.check_text(text)
    num_queries, num_keys = layer.num_queries(text), layer.num_keys(text)
    if not (0 <= query < num_queries and 0 <= key < num_keys):
        raise NotHere(
            f"there is no cell {query}, {key}: this map has {num_queries} rows and {num_keys} columns, from 0."
        )
    if opened.edited:
        raise NotHere("heads of this recording were edited, and only the model as it is can be explained.")
    if max(num_queries, num_keys) > MOST_TOKENS:
        raise TooLarge(
            f"the text has {max(num_queries, num_keys):,} tokens, and the page explains weights of up to "
            f"{MOST_TOKENS:,}: open a part of it, or ask mh.why(lm, text, {head!r}, {query}, {key})."
        )
    lm = model_of(workspace, opened)
    if lm is None:
        raise NotHere(f"{opened.model} is not loaded here, and what wrote a head's query and keys needs it.")

    def ask() -> WhyAnswer:
        answer = why(lm, _text_of(opened, text), head, query, key, against)
        recorded = float(layer.weights(index, slice(query, query + 1), slice(key, key + 1), text))
        if abs(recorded - answer.weight) > SAME:
            raise NotHere(
                f"the model, read again, gives this cell {answer.weight:.4f} and not {recorded:.4f} as recorded: its "
                f"text is read otherwise there. Open the text itself."
            )
        return _answer(answer, opened, lm, query, key, against, text)

    return opened.explained.get_or_make((text, head, query, key, against), ask)


def _text_of(opened: Opened, text: int) -> Recording | str | tuple[str, str]:
    """What `why` is asked of: the recording, or one text of several."""
    tokens = opened.recording.tokens
    if opened.num_texts == 1:
        return opened.recording
    if not tokens.texts:
        raise NotHere("this recording holds no text that a model could read again.")
    return tokens.texts[text] if tokens.target is None else (tokens.texts[text], tokens.target.texts[text])


def _answer(
    answer: Why, opened: Opened, lm: LoadedModel, query: int, key: int, against: Against, text: int
) -> WhyAnswer:
    return WhyAnswer(
        head=str(answer.head),
        query_token=WhyPlace(**answer.from_token._asdict()),
        key_token=_look(answer.to_token),
        against=None if answer.against is None else _look(answer.against),
        next=[_look(look) for look in answer.next],
        weight=answer.weight,
        is_story=answer.weight >= NO_STORY,
        log_odds=answer.log_odds,
        written=answer.total,
        rows=[
            WhyRow(
                name=name,
                words=f"the spread over {plural(answer.rivals, 'other key')}" if name == "spread" else ROWS[name],
                share=share,
            )
            for name, share in answer.rows.items()
        ],
        query=[_writer(row) for row in answer.query],
        key=[_writer(row) for row in answer.key],
        pairs=[WhyPair(**pair._asdict()) for pair in answer.pairs()],
        num_pairs=answer.pair_shares.size,
        error=answer.error,
        said=sentence_of(answer),
        caution=f"{answer.massive[:1].upper()}{answer.massive[1:]}." if answer.massive else "",
        lines=list(answer.lines()),
        command=_command(opened, lm, str(answer.head), query, key, against, text),
    )


def _look(look: Look) -> WhyLook:
    return WhyLook(**look._asdict())


def _writer(row: WriterShare) -> WhyWriter:
    looks = None if row.looks_at is None else _look(row.looks_at)
    return WhyWriter.of(row, looks_at=looks)


def sentence_of(answer: Why) -> str:
    """The weight, and whom it is owed to: the writer with the largest share on either side."""
    is_same = answer.from_token.position == answer.to_token.position
    apart = not is_same and answer.from_token.token.strip() == answer.to_token.token.strip()
    begin, end = (_quoted(token, apart) for token in (answer.from_token, answer.to_token))
    if answer.weight < NO_STORY:
        return f"{answer.head} does not look from {begin} to {end}: a weight of {percent(answer.weight)} is no story."
    rather = "" if answer.against is None else f" rather than at {_quoted(answer.against)}"
    what = f"{begin} looks at {'itself' if is_same else end}{rather}"
    owed: dict[str, str] = {}  # place -> writer
    for table, place in ((answer.query, begin), (answer.key, end)):
        top = max(table, key=lambda row: row.share)
        if top.share < LEAST_SHARE:
            continue
        if top.at_rivals is not None and top.at_rivals > top.share / 2:
            place = "the other keys, against them" if answer.against is None else "its rival, against it"
        owed[place] = (
            _name(top) if place not in owed or owed[place] == _name(top) else f"{owed[place]} and {_name(top)}"
        )
    if not owed:
        return f"{what}, and no one writer stands out."
    if len(owed) == 2 and len(set(owed.values())) == 1 and list(owed) == [begin, end]:
        return f"{what} for what {owed[begin]} wrote at both."
    return f"{what} for what {' and '.join(f'{writer} wrote at {place}' for place, writer in owed.items())}."


def _name(row: WriterShare) -> str:
    return row.writer if row.kind == "head" else f"the {row.writer}"


def _quoted(place: Place | Look, with_position: bool = False) -> str:
    word = f"“{place.token.strip() or place.token}”"
    return f"{word} ({place.position})" if with_position else word


def _command(opened: Opened, lm: LoadedModel, head: str, query: int, key: int, against: Against, text: int) -> str:
    """The same on the command line; "" where that cannot read the text."""
    tokens = opened.recording.tokens
    if not tokens.texts or tokens.target is not None or opened.num_texts > 1:
        return ""
    rival = [] if against == "rest" else ["--against", str(against)]
    options = ["--head", head, "--from", str(query), "--to", str(key), *rival, "--model", lm.name]
    words = tokens.texts[text]
    # A text that begins with a dash would be read as an option: it stands behind all of them.
    return shlex.join(["manyheads", "why", *([*options, "--", words] if words.startswith("-") else [words, *options])])
