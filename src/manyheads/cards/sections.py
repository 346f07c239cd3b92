"""`cards`: a card for every head of a model, or for some, from what `evidence.py` has of all.

Sections whose numbers a model cannot give stay without facts, and say why. Commands are those of the command line;
where there is none, a line of Python after those of `prelude_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from manyheads.base import first_line, plural, quoted
from manyheads.cards.evidence import MAPS, TEXTS, Measured, says_where
from manyheads.cards.head_card import Card, Fact, Section, TextMap, rounded
from manyheads.cards.remembered import folder_of, keep, remembered
from manyheads.cards.sentence import Clause, claim_fact, clauses_of, loss_fact, sentence_of
from manyheads.circuits.why import LEAST_SHARE, NO_STORY, why
from manyheads.circuits.writes import CLEAR, TraceShare, writes
from manyheads.corpora import reading_of
from manyheads.edits import require_loaded
from manyheads.errors import HeadError, ManyHeadsError, ModelError
from manyheads.heads import Head, HeadLike, HeadsLike
from manyheads.machine import require_all_heads
from manyheads.models import LoadedModel
from manyheads.progress import Progress
from manyheads.roles.words import UNLABELLED
from manyheads.texts import readable

PARTNERS = 4  # heads that are listened to, and that listen
LEAST_Z = 2.0  # of a partner: what is less is chance
NEIGHBOURS = 4
WRITERS = 3  # of a weight's side
EXAMPLES, TOKENS = 3, 5  # tokens of which it is shown what is written, and how many of these
LINES = 12  # of "where does it look"
ALWAYS = (
    "previous token", "next token", "self", "local", "duplicate token", "induction", "punctuation", "rare tokens",
    "sink", "first token",
)  # fmt: skip
"""Questions whose answer is shown of every head, whether a claim holds or not."""
BY = {"q": "by its queries", "k": "by its keys", "v": "by its values"}
ASKS = {
    "evidence": "How is that known?",
    "looks": "Where does it look?",
    "why": "Why there?",
    "writes": "What does it write?",
    "listens": "Whom does it listen to?",
    "heard": "Who listens to it?",
    "lost": "What is lost without it?",
    "reach": "Does it need a long context?",
    "neighbours": "Which heads look like it?",
}


def prelude_of(model: str) -> str:
    """The lines that stand before a command in Python."""
    return f"import manyheads as mh; from manyheads.corpora import reading_of; lm = mh.load({model!r})"


def cards(
    lm: LoadedModel,
    heads: HeadsLike | None = None,
    *,
    remember: bool = True,
    measured: Measured | None = None,
    on_step: Callable[[str], Progress | None] | None = None,
) -> tuple[Card, ...]:
    """A card for each of these heads: what it is in one sentence, and the evidence for it.

    - `lm`: a loaded model.
    - `heads`: as in a plan ("L12H3", "L3, L5H1"); None: all.
    - `remember`: whether cards of an earlier run will do, and these are stored for the next.
    - `measured`: shared measurements from earlier calls for other heads of this model, which this call adds to. Start
      with `Measured(lm)`.
    - `on_step`: called with the name of each measurement that all cards share; what it returns is called with how far
      that is.

    Every part is measured once for all cards, on the bundled texts of the model's kind. What a model cannot be asked
    (no tokenizer, no next token) is one line of its section.
    Cost: that of `find_roles`, `roles.probes`, `composition` and `head_families`, and a sweep of ablations on 64 texts
    (24 for a model of more than 100 heads), half a forward pass for each head and each of its ten random controls; then
    a second a head of smollm2. Errors: HeadError, ModelError.
    """
    require_loaded(lm)
    require_all_heads(lm.model, lm.name, "cards")
    chosen = lm.spec.heads.heads if heads is None else lm.spec.select(heads).heads
    if measured is not None and measured.lm is not lm:
        raise ModelError(
            f"measured= belongs to {measured.lm.name} as it was loaded then, and not to this model: leave it out."
        )
    folder = folder_of(lm) if remember else None
    made = remembered(folder, chosen)
    missing = [head for head in chosen if head not in made]
    begins = on_step or (lambda _: None)
    measured = (Measured(lm) if measured is None else measured).turn_to(missing, begins, folder)
    progress = None
    for number, head in enumerate(missing):
        if number == 1:  # the first has measured what all share
            progress = begins("asking head after head why, and what it writes")
        made[head] = keep(folder, card_of(measured, head))
        if progress is not None:
            progress(number + 1, len(missing))
    return tuple(made[head] for head in chosen)


def card(lm: LoadedModel, head: HeadLike, *, remember: bool = True) -> Card:
    """The card of one head ("L12H3"); arguments, cost and errors as for `cards`, and HeadError for several heads.

    What an earlier run remembered comes at once; else what all heads share is measured first.
    """
    require_loaded(lm)
    heads = lm.spec.select(head).heads
    if len(heads) != 1:
        raise HeadError(f"{head!r} is {len(heads)} heads, and a card is about one: cards(lm, {head!r}) makes them all.")
    (made,) = cards(lm, heads, remember=remember)
    return made


def card_of(measured: Measured, head: Head) -> Card:
    """The card of one head."""
    lm, missing = measured.lm, measured.missing
    site = lm.spec.site_of(head)
    role = None if measured.labels is None else measured.labels.role_of(head)
    maps = _maps(measured, head)
    written, wrote = _writes(measured, head, maps[0].text if maps else None)
    clauses = clauses_of(measured, head, wrote)
    evidence = [clause.fact for clause in clauses]
    sections = (
        _section("evidence", evidence, "", missing.get("labels", "") if role is None else ""),
        _looks(measured, head),
        _why(measured, head, maps),
        written,
        *_partners(measured, head),
        _lost(measured, head),
        _reach(measured, head),
        _neighbours(measured, head),
    )
    label = UNLABELLED if role is None else role.name
    sentence = sentence_of(clauses, missing.get("labels", "nothing is known of it"))
    keywords = [label, *(fact.label for fact in sections[1].facts if fact.mark == "holds")]
    keywords += [word for fact in sections[3].facts for word in tokens_in(fact)]
    group = site.kv_head_of(head.index)
    sharing = [str(other) for other in site.heads if other != head and site.kv_head_of(other.index) == group]
    of_stack = lm.spec.stacks[head.stack]
    place = f"head {head.index} of {site.num_heads} in layer {head.layer} of {len(of_stack)}, both counted from 0"
    if site.num_kv_heads < site.num_heads:
        place += f"; key/value head {group}, shared with {', '.join(sharing)}"
    notes = {"python": prelude_of(lm.name), "terminal": f"manyheads card {head} --model {measured.name}"}
    if measured.labels is not None:
        notes["labels"] = f"{measured.labels.num_texts:,} {measured.labels.texts_are}; {measured.labels.because}"
    return Card(
        lm.name, head, place, group, label, sentence, maps, sections,
        tuple(dict.fromkeys(filter(None, keywords))), notes,
    )  # fmt: skip


def _section(name: str, facts: Sequence[Fact], command: str, note: str = "") -> Section:
    return Section(name, ASKS[name], tuple(facts), command if facts else "", note)


def _maps(measured: Measured, head: Head) -> tuple[TextMap, ...]:
    shown = measured.shown(head)
    if not shown:
        return ()
    mean = sum(one.share for one in shown) / len(shown)
    of_texts = f"{mean:.0%} in the mean of {plural(len(shown), 'short text')}"
    out: list[TextMap] = []
    role = None if measured.labels is None else measured.labels.role_of(head)
    of_label = "does what its label says" if says_where(role) else "goes to other tokens than itself and sinks"
    for one in shown[:MAPS]:
        weights = measured.weights(head, one.place)
        pieces = readable(measured.tokens, one.place)
        thousandths = [_thousandths(row) for row in weights.tolist()]
        text = measured.pool_texts[one.place]
        words = f"Where it can, {one.share:.0%} of its attention {of_label}; {of_texts}"
        out.append(
            TextMap(
                text, pieces, tuple(thousandths), one.query, one.key, round(one.weight, 4),
                words, f"manyheads head {head} {quoted(text)} --model {measured.name}",
            )
        )  # fmt: skip
    return tuple(out)


def _thousandths(row: Sequence[float]) -> tuple[int, ...]:
    """A row of a map as it is stored: without the zeros behind its last weight."""
    values = [round(1000 * weight) for weight in row]
    while values and not values[-1]:
        values.pop()
    return tuple(values)


def _looks(measured: Measured, head: Head) -> Section:
    roles = measured.roles
    if roles is None or head not in roles.heads:
        why = measured.missing.get("looks", "it reads other tokens than its own text's")
        return _section("looks", (), "", why)
    claims = [claim for claim in roles.claims[roles.head_place(head)] if claim.num_queries]
    holding = sorted((claim for claim in claims if claim.holds), key=lambda claim: -claim.distance)
    others = [claim for claim in claims if claim.role in ALWAYS and not claim.holds]
    lines = [*holding, *sorted(others, key=lambda claim: -claim.tested)][:LINES]
    texts = f"{roles.table.sums.num_texts:,} texts; figures are of the half on which no head was chosen"
    command = f"manyheads roles --out claims.csv --model {measured.name}"
    count = f"it is an answer to {len(holding)} of {len(claims)} questions; the other lines are the usual questions"
    return _section("looks", [claim_fact(claim) for claim in lines], command, f"{count}. {texts}")


def _why(measured: Measured, head: Head, maps: Sequence[TextMap]) -> Section:
    """The largest weight of the first map that tells something, split over what wrote its query and its keys."""
    if not maps:
        return _section("why", (), "", measured.missing.get("maps", "no text is shown, and so no weight is explained"))
    one = maps[0]
    command = f"mh.why(lm, {one.text!r}, {str(head)!r}, query={one.query}, key={one.key})"
    if one.text.isprintable():  # the command line would read lines as one
        places = f"--from {one.query} --to {one.key}"
        command = f"manyheads why {quoted(one.text)} --head {head} {places} --model {measured.name}"
    try:
        answer = why(measured.lm, one.text, head, query=one.query, key=one.key)
    except ManyHeadsError as error:
        return _section("why", (), "", first_line(error))
    pair = f"{answer.from_token.token.strip()} ({one.query}) to {answer.to_token.token.strip()} ({one.key})"
    terms = "".join(f" {value:+.2f} for the {name}" for name, value in answer.rows.items() if name != "rounding")
    words = f"weight {answer.weight:.2f}; log-odds against the rest = {answer.total:+.2f} of what was written{terms}"
    facts = [Fact(pair, rounded(answer.log_odds), "log-odds", words=words)]
    for side, table in (("query", answer.query), ("key", answer.key)):
        for row in sorted(table, key=lambda row: -row.share)[:WRITERS]:
            if row.share < LEAST_SHARE:
                continue
            looks = "" if row.looks_at is None else f"looks at {row.looks_at!s} {row.looks_at.weight:.2f} itself; "
            rivals = "at the rivals; " if row.at_rivals is not None and row.at_rivals > row.share / 2 else ""
            facts.append(
                Fact(f"{side}: {row.writer}", rounded(row.share), "log-odds",
                     words=f"{looks}{rivals}without it the weight would be {row.without:.2f}",
                     head=row.writer if row.kind == "head" else "")
            )  # fmt: skip
    note = "each side's shares add up to what was written; a share is of this weight, with norms held"
    note += "; without a writer they act again, so the weight need not fall with a share"
    if answer.weight < NO_STORY:
        note = f"a weight under {NO_STORY:g} is no story; {note}"
    return _section("why", facts, command, f"{answer.massive}; {note}" if answer.massive else note)


def _writes(measured: Measured, head: Head, text: str | None) -> tuple[Section, Clause | None]:
    """By tokens from its weights, and where it writes most on the first map's text; and the clause of the sentence."""
    command = f"manyheads writes --head {head} --model {measured.name}"
    by_weights = command
    if text is not None:
        command = f"mh.writes(lm, {str(head)!r}, {text!r})"
        if text.isprintable():  # the command line would read lines as one
            command = f"manyheads writes {quoted(text)} --head {head} --model {measured.name}"
    try:
        result = writes(measured.lm, head, text)
    except ManyHeadsError as error:
        return _section("writes", (), "", first_line(error)), None
    does, ranks, copying = result.does, result.ranks, result.copying
    side, share = max((("promoted", ranks.copies), ("suppressed", ranks.suppresses)), key=lambda pair: pair[1])
    words = f"{result.habit}; among the five most {side} for {share:.0%} of {ranks.num_words} words"
    facts = [Fact("copying, by its weights", rounded(copying.value), "-1 to 1", words=words)]
    facts += [
        Fact(
            f"looks for {name}",
            rounded(of.value),
            "-1 to 1",
            words=f"{_way(of)}, by its weights; {within(of.chance)}",
        )
        for name, of in result.matching.items()
    ]
    facts += [
        Fact(f"of {shown(table.token)}", words=_written(table.promoted, table.suppressed))
        for table in result.tables[:EXAMPLES]
    ]
    for row in result.strongest:
        keys = ", ".join(f"{shown(key.token)} ({key.position})" for key in row.keys[:2])
        words = f"from {keys}: {_written(row.promoted, row.suppressed)}"
        label = f"at {shown(row.token)} ({row.position})"
        facts.append(Fact(label, rounded(row.of_layer), "of its layer", words=words))
    note = f"copying: {within(copying.chance)}; under {CLEAR:g} either way is taken for neither"
    note += f"; of a token, by weights: {result.notes['source']}"
    note += f"; read out {result.notes['read out']}; the blank before a token is not shown"
    if result.positions:
        note += "; at a token of the first text above: the length of its output over that of its layer's, and from "
        note += "which tokens most of it came: weight times value"
    clause = None
    if does != "neither":
        clause = Clause(result.habit, replace(facts[0], label=result.habit, command=by_weights))
    return _section("writes", facts, command, note), clause


def _way(of: TraceShare) -> str:
    """Whether a head looks for what is asked, in words."""
    return "neither that nor away from it" if not of.counts else "it does" if of.value > 0 else "it looks away from it"


def tokens_in(fact: Fact) -> list[str]:
    """The tokens that a line of "what does it write" names."""
    if "promotes" not in fact.words or fact.unit == "-1 to 1":
        return []
    return [word for word in fact.words.replace(";", " ").split() if word not in ("from", "promotes", "suppresses")]


def _written(promoted: Sequence[tuple[str, float]], suppressed: Sequence[tuple[str, float]]) -> str:
    up, down = (" ".join(shown(token) for token, _ in side[:TOKENS]) for side in (promoted, suppressed))
    return f"promotes {up}; suppresses {down}"


def shown(token: str) -> str:
    """A token without its blanks; one of white space alone as it is."""
    return token.strip() or token


def within(deviation: float) -> str:
    """Two standard deviations of chance, in words."""
    return f"chance within {2 * deviation:.2f}"


def _partners(measured: Measured, head: Head) -> tuple[Section, Section]:
    scored = measured.composition
    if scored is None:
        why = measured.missing["listens"]
        return _section("listens", (), "", why), _section("heard", (), "", why)
    rest = (
        "of each head its strongest way; by weights alone, and so possible rather than done; z: standard deviations "
        "above random directions"
    )
    count = PARTNERS * len(BY)  # links of at least PARTNERS heads
    sections: list[Section] = []
    for name, side, end in (("listens", "reader", "before"), ("heard", "writer", "behind")):
        as_reader = side == "reader"
        ends = {"reader": head} if as_reader else {"writer": head}
        links = scored.strongest(None, count, **ends)
        # Strongest first, and of one key the last in a dict stays.
        best = {link.writer if as_reader else link.reader: link for link in reversed(links)}
        facts: list[Fact] = []
        for other, link in sorted(best.items(), key=lambda entry: -entry[1].z)[:PARTNERS]:
            by = BY[link.kind] if as_reader else BY[link.kind].replace("its", "that head's")
            words = f"{by}; score {link.score:.2f}, {scored.chance:.2f} by chance"
            mark = "" if link.z >= LEAST_Z else "not beyond chance"
            words += f"; {mark}" if mark else ""
            facts.append(Fact(str(other), rounded(link.z), "z", mark=mark, words=words, head=str(other)))
        command = f"mh.composition(lm).strongest(count={count}, {side}={str(head)!r})"
        note = f"none beyond chance; {rest}" if all(fact.mark for fact in facts) else rest
        sections.append(_section(name, facts, command, note if facts else f"no head is {end} it"))
    return sections[0], sections[1]


def _lost(measured: Measured, head: Head) -> Section:
    loss = measured.losses.get(head)
    if loss is None:
        return _section("lost", (), "", measured.missing.get("lost", ""))
    texts = f"its output zeroed, on {measured.num_texts} {reading_of(measured.lm).texts_are}; exact, this head alone"
    fact = loss_fact(measured, head, loss)
    return _section("lost", [fact], fact.command, texts)


def _reach(measured: Measured, head: Head) -> Section:
    probe = measured.probes.get("retrieval")
    facts: list[Fact] = []
    command = f"manyheads roles --probes --ask retrieval --top 270 --model {measured.name}"
    note = measured.missing.get("reach", "")
    score = None if probe is None or probe.scores is None or head not in probe.scores.heads else probe.scores[head]
    if probe is not None and score is not None and score.score == score.score:
        mark = "beyond chance" if probe.beats_chance(score) else "not beyond chance"
        if score.low != score.low:
            mark = "no interval: too few answers to be sure"
        facts.append(
            Fact("finds a fact far back", rounded(score.score), "share", rounded(score.chance), rounded(score.low),
                 rounded(score.high), mark=mark)
        )  # fmt: skip
    if probe is not None and probe.scores is None:
        command, note = "", f"not asked for facts far back: {probe.says}"
    elif probe is not None:
        note = probe.says
    if measured.labels is not None and (values := measured.labels.values.get(str(head))):
        distance = values.get("distance")
        if distance is not None:
            facts.append(
                Fact("how far away it looks", rounded(distance), "tokens", words="tokens, in the mean of short texts",
                     command=f"manyheads look --all --model {measured.name}")
            )  # fmt: skip
    return _section("reach", facts, command, note)


def _neighbours(measured: Measured, head: Head) -> Section:
    families = measured.families
    if families is None or head not in families.heads:
        return _section("neighbours", (), "", measured.missing.get("neighbours", "heads of another stack"))
    facts = [
        Fact(str(other), rounded(divergence), "nats", head=str(other), words=_role_words(measured, other))
        for other, divergence in families.nearest(head, NEIGHBOURS)
    ]
    command = f"mh.head_families(lm, reading_of(lm).spread({TEXTS})).nearest({str(head)!r}, {NEIGHBOURS})"
    note = f"how far apart they look (Jensen-Shannon divergence, 0 to 0.69) on {families.num_rows} rows"
    return _section("neighbours", facts, command, note)


def _role_words(measured: Measured, head: Head) -> str:
    role = None if measured.labels is None else measured.labels.role_of(head)
    return "" if role is None else role.name
