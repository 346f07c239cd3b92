"""The card of one head, as the page shows it: that of `mh.card`, with numbers as people read them."""

from __future__ import annotations

import threading

from manyheads.cards import Card, Measured, cards
from manyheads.progress import Progress
from manyheads.roles.words import group_of
from manyheads.studio.jobs import ReportProgress
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.explained import CardFact, CardMap, CardSection, FullCard
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace


class Cards:
    """Cards of heads, made when one is asked for. What those of a model share is kept for the model asked last."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._measured: Measured | None = None
        self._lock = threading.Lock()  # two cards of one model need the same measurements: the second waits

    def of(self, opened: Opened, head: str, report: ReportProgress) -> FullCard:
        """The card of a head of a recording's model, remembered or made. Raises NotHere; errors as `cards`."""
        opened.layer_of(head)
        if opened.edited:
            raise NotHere("a card is of the model as it is, and the heads of this recording were edited.")
        if opened.model not in self.workspace.models:
            raise NotHere(f"{opened.model} is not in this workspace, so nothing can be measured: add --model ...")
        lm = self.workspace.load(opened.model, report)

        def step(words: str) -> Progress:
            report(words, 0, None)
            return lambda done, total: report(words, done, total)

        while not self._lock.acquire(timeout=0.2):
            report("waiting for another card", 0, None)
        try:
            if self._measured is None or self._measured.lm is not lm:
                self._measured = Measured(lm)
            (card,) = cards(lm, head, measured=self._measured, on_step=step)
        finally:
            self._lock.release()
        return card_body(card)


def card_body(card: Card) -> FullCard:
    """A card of the library as the page is sent it."""
    return FullCard.of(
        card,
        head=str(card.head),
        family=group_of(card.role),
        maps=[
            CardMap.of(one, weights=[list(row) for row in one.weights], tokens=list(one.tokens)) for one in card.maps
        ],
        sections=[
            CardSection.of(section, facts=[CardFact.of(fact) for fact in section.facts]) for section in card.sections
        ],
        notes=dict(card.notes),
    )
