"""A static site of cards: an index with a picture of every head of each model and a search, and a page a head.

Plain HTML with one small stylesheet and script, written from the templates in `pages`; every address is relative, and
the pages' policy forbids to fetch anything from elsewhere. All texts are data: the templates escape them. Without a
script each card reads whole, but for the drawings of its maps.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from manyheads import __version__
from manyheads.base import few, plural
from manyheads.cards.head_card import Card, Fact, Section, TextMap, names_of
from manyheads.errors import ModelError
from manyheads.interventions.save import replacing_folder, require_replaceable
from manyheads.roles.words import CAVEAT, INK, NO_ROLE, ROLES, group_of, letter_of, words_of

MARK, INSIDE = "manyheads-cards.json", "heads"
OURS = re.compile(rf"index\.html|cards\.(css|js)|favicon\.svg|{re.escape(MARK)}|[a-z0-9-]+\.html")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'none'; "
    "base-uri 'none'; form-action 'none'"
)
EFFECTS = {
    "stands out": "missed more than any random head",
    "more than most": "missed more than most",
    "barely": "hardly missed",
    "nothing": "nothing changes",
}
BARS = 8  # lengths of the bar under a head
HEADINGS = {  # of each section's columns: what a line is, its number, and what is said of it
    "evidence": ("what", "measured", "in words"),
    "looks": ("question", "measured", "held out"),
    "why": ("part", "log-odds", "in words"),
    "writes": ("what", "measured", "in words"),
    "listens": ("head", "z", "how"),
    "heard": ("head", "z", "how"),
    "lost": ("what", "change", "beside random heads"),
    "reach": ("what", "measured", "in words"),
    "neighbours": ("head", "divergence, nats", "its role"),
}


class Line(NamedTuple):
    """A fact as a row of a table: `bar` and `tick` are the lengths of a share and of its chance, 0 to 100."""

    label: str
    number: str
    interval: str
    chance_number: str
    words: str
    command: str
    address: str
    bar: float | None
    tick: float | None
    faint: bool


class Style(NamedTuple):
    """The colour of a group of roles, and the ink that reads best on it."""

    style: str
    colour: str
    ink: str


def write_cards(folder: str | os.PathLike[str], cards: Sequence[Card], *, title: str = "") -> str:
    """Write cards, of one model or several, as a static site. Returns in words what it holds.

    - `folder`: written whole or not at all; an existing one is replaced only if it is empty, or an earlier site of
      cards.
    - `cards`: in the order in which they are to stand.
    - `title`: of the first page.

    Cost: some 25 kB a card. Errors: ModelError for no card; FileAccessError.
    """
    if not cards:
        raise ModelError("there is no card to write: give those of `cards(lm)`.")
    require_writable(folder)
    pages = Environment(
        loader=PackageLoader("manyheads.cards", "pages"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    models = names_of(cards)
    title = title or f"The heads of {few(models)}"
    shared = {"policy": POLICY, "version": __version__, "title": title, "caveat": CAVEAT}
    addresses = {key_of(card): f"{name_of(card)}.html" for card in cards}
    with replacing_folder(folder, INSIDE, None, OURS, MARK) as place:
        (place / INSIDE).mkdir()
        for number, card in enumerate(cards):
            before, after = ("" if other is None else addresses[key_of(other)] for other in _beside(cards, number))
            page = pages.get_template("card.html").render(
                **shared, root="../", card=card, slug=slug(card.model), style=style_of(card.role),
                before=before, after=after, maps=[map_of(one) for one in card.maps],
                maps_note="They were chosen because the head does this most on them, not to show how often it does.",
                sections=[section_of(section, card, addresses) for section in card.sections],
            )  # fmt: skip
            (place / INSIDE / addresses[key_of(card)]).write_text(page, encoding="utf-8")
        lead = (
            "One card a head: what it is in one sentence, by rules from texts on which it was not chosen; where it "
            "looks, why, what it writes, whom it listens to, what is lost without it; and the command of every number."
        )
        index = pages.get_template("index.html").render(
            **shared, root="", lead=lead, effects=list(EFFECTS.items()),
            models=[model_of([card for card in cards if card.model == model], addresses) for model in models],
        )  # fmt: skip
        (place / "index.html").write_text(index, encoding="utf-8")
        (place / "cards.css").write_text(pages.get_template("cards.css").render(styles=styles()), encoding="utf-8")
        static = files("manyheads.cards") / "pages"
        for name in ("cards.js", "favicon.svg"):
            (place / name).write_bytes((static / name).read_bytes())
        mark = {"format": "manyheads-cards", "format_version": "1", "models": models, "cards": len(cards)}
        (place / MARK).write_text(json.dumps(mark), encoding="utf-8")
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return f"{plural(len(cards), 'card')} of {few(models)}, {size / 1e6:.1f} MB"


def require_writable(folder: str | os.PathLike[str]) -> None:
    """What can be refused before a model is measured. Errors: FileAccessError."""
    require_replaceable(Path(os.path.realpath(folder)), INSIDE, OURS, MARK)


def slug(name: str) -> str:
    """A model's name as a part of an address."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "model"


def name_of(card: Card) -> str:
    """The name of a card's page, without its ending."""
    return f"{slug(card.model)}-{slug(str(card.head))}"


def key_of(card: Card) -> tuple[str, str]:
    """A card's model and head."""
    return card.model, str(card.head)


def _beside(cards: Sequence[Card], number: int) -> tuple[Card | None, Card | None]:
    """The cards before and after one, of the same model."""
    before, after = (cards[place] if 0 <= place < len(cards) else None for place in (number - 1, number + 1))
    model = cards[number].model
    return (
        before if before is not None and before.model == model else None,
        after if after is not None and after.model == model else None,
    )


def style_of(role: str) -> str:
    """The class of a role's colour."""
    return f"r-{slug(group_of(role))}"


def styles() -> list[Style]:
    """A class for each group of roles."""
    entries: dict[str, Style] = {}
    for row in (*ROLES, NO_ROLE):
        if row.words:
            entries[row.group] = Style(f"r-{slug(row.group)}", row.colour, ink_on(row.colour))
    return list(entries.values())


def ink_on(colour: str) -> str:
    """White or ink, whichever reads best on a colour (relative luminance, WCAG 2.1)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return "#ffffff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue <= 0.179 else INK


def map_of(one: TextMap) -> dict[str, object]:
    """A map as its template takes it."""
    return {
        **vars(one), "data": json.dumps([list(row) for row in one.weights], separators=(",", ":")),
        "size": len(one.tokens), "share": f"{one.weight:.1%}",
    }  # fmt: skip


def section_of(section: Section, card: Card, addresses: dict[tuple[str, str], str]) -> dict[str, object]:
    """A section as its template takes it: only columns that say something."""
    column, unit, words = HEADINGS[section.name]
    facts = [line_of(fact, card.model, addresses) for fact in section.facts]
    return {
        "name": section.name, "asks": section.asks, "command": section.command, "note": section.note, "facts": facts,
        "column": column, "unit": unit,
        "numbers": any(fact.number for fact in facts), "chances": any(fact.chance_number for fact in facts),
        "words": words if any(fact.words or fact.command for fact in facts) else "",
    }  # fmt: skip


def line_of(fact: Fact, model: str, addresses: dict[tuple[str, str], str]) -> Line:
    share = fact.unit == "share" and fact.value is not None
    bar = round(100 * min(1.0, max(0.0, fact.value or 0.0)), 1) if share else None
    tick = round(98.5 * min(1.0, fact.chance), 1) if share and fact.chance is not None else None
    words = fact.words if not fact.mark or fact.words else fact.mark
    return Line(
        fact.label, fact.number, f"({fact.interval})" if fact.interval else "", fact.chance_number, words, fact.command,
        addresses.get((model, fact.head), "") if fact.head else "", bar, tick, fact.mark == "does not hold",
    )  # fmt: skip


def model_of(cards: Sequence[Card], addresses: dict[tuple[str, str], str]) -> dict[str, object]:
    """A model's part of the index: its picture, a row for each layer, and a line for each head."""
    name = cards[0].model
    largest = max((loss for card in cards if (loss := card.loss) is not None), default=0.0)
    layers: dict[str, dict[int, list[dict[str, object]]]] = {}
    entries: list[dict[str, object]] = []
    for card in cards:
        loss = card.loss or 0.0
        size = round(BARS * (max(0.0, loss) / largest) ** 0.5) if largest > 0 else 0
        lost = card["lost"].facts
        address = f"{INSIDE}/{addresses[key_of(card)]}"
        about: dict[str, object] = {"id": name_of(card), "address": address, "style": style_of(card.role)}
        cell = about | {"letter": letter_of(card.role), "size": size, "label": f"{card.head}, {card.role}"}
        layer = f"{card.head.stack} {card.head.layer}".strip()
        layers.setdefault(layer, {}).setdefault(card.group, []).append(cell)
        effect = lost[0].mark if lost else ""
        entry = about | {"name": str(card.head), "role": card.role, "sentence": card.sentence}
        entries.append(entry | {"keywords": " ".join(card.keywords), "effect": effect, "loss": f"{loss:.6g}"})
    counts = Counter(group_of(card.role) for card in cards)
    role_of = {group_of(card.role): card.role for card in cards}  # one of each group, which names it
    legend = [
        {"style": style_of(role_of[group]), "letter": letter_of(role_of[group]), "count": count,
         "words": f"{group}: {words_of(role_of[group])}".removesuffix(": ")}
        for group, count in counts.most_common()
    ]  # fmt: skip
    facts = f"{plural(len(cards), 'head')} in {plural(len(layers), 'layer')}, a row a layer."
    if len(cards) > sum(map(len, layers.values())):
        facts += " Heads that stand together share their keys and values."
    return {
        "name": name, "slug": slug(name), "facts": facts, "legend": legend, "entries": entries,
        "layers": [{"name": layer, "groups": list(groups.values())} for layer, groups in layers.items()],
    }  # fmt: skip
