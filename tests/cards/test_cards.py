"""Cards: every number is that of the command which the card names, the sentence follows from the facts by rules, what a
model cannot be asked is said, and the site holds all of it, whatever a text says.

The oracle of a number is the library's own call, run again; of a map, the model's own eager attention.
"""

import ast
import gzip
import json
import re
import shlex
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import manyheads as mh
from manyheads.cards import Card, Fact, Section, TextMap, cards, require_writable, write_cards
from manyheads.cards import card as card_of
from manyheads.cards.evidence import Loss, Measured
from manyheads.cards.remembered import NOTE, folder_of
from manyheads.cards.sections import _maps, _way
from manyheads.cards.sentence import Clause, clauses_of, loss_fact, sentence_of
from manyheads.circuits.why import why
from manyheads.circuits.writes import TraceShare, writes
from manyheads.cli.main import main
from manyheads.corpora import own_corpora, reading_of
from manyheads.errors import FileAccessError, HeadError, ModelError
from manyheads.heads import Head
from manyheads.interventions import verdict
from manyheads.roles import Evidence, find_roles
from manyheads.roles.compare import head_families
from manyheads.roles.probes import ask_probes
from manyheads.roles.rules import PLACES
from manyheads.texts import Sinks
from tests.checking import unchecked
from tests.models.tiny import tiny_llama, tiny_tokenizer
from tests.refusals import refuses
from tests.short_pages import short_readings, shorten_pages

PAGES = 16
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"quoted\" 'and' & \x1b[31m"


def shorten(patch):
    """Few texts: a card of a small model takes a second or two."""
    shorten_pages(patch, PAGES)
    for place in ("evidence", "sections", "remembered"):
        patch.setattr(f"manyheads.cards.{place}.reading_of", short_readings(PAGES))
    patch.setattr("manyheads.cards.evidence.own_corpora", short_corpora)
    patch.setattr("manyheads.cards.evidence.POOL", 12)


def short_corpora(model):
    return short_readings(PAGES)(model).corpus(), None


@pytest.fixture(scope="module")
def small():
    """A random model with a tokenizer, and two of its cards: of its first layer, and of its last."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        lm = mh.load(tiny_llama(), name="small", tokenizer=tiny_tokenizer(special_tokens=False))
        steps = []
        made = cards(lm, "L0H1, L2H4", remember=False, on_step=lambda name: steps.append(name))
        assert len(steps) == len(set(steps)) >= 5  # each is measured once for both
        yield lm, made


def fact(card, section, label):
    (one,) = (fact for fact in card[section].facts if fact.label == label)
    return one


def test_numbers_of_a_card_are_those_of_the_calls_that_it_names(small, monkeypatch):
    lm, made = small
    shorten(monkeypatch)
    for card in made:
        assert_numbers(lm, card, short_corpora(lm.name), short_readings(PAGES)(lm).spread(64))


def assert_numbers(lm, card, corpora, texts):
    """The numbers of a card against the library's calls, run again."""
    head, close = str(card.head), {"rel": 1e-3, "abs": 2e-6}
    lost, command = card["lost"].facts[0], card["lost"].command
    if len(lm.spec.heads.heads) > 100:
        assert command == f"mh.effect(lm, mh.Ablate('{head}'), reading_of(lm).spread(24))"
        alone = eval(command, {"mh": mh, "reading_of": reading_of, "lm": lm})
    else:
        assert command == f"manyheads ablate {head} --model {lm.name}"
        alone = mh.effect(lm, mh.Ablate(head), texts)
    assert lost.value == pytest.approx(alone.change, **close) and card.loss == lost.value
    assert (lost.low, lost.high) == pytest.approx((alone.low, alone.high), **close)
    assert lost.words.startswith(verdict(alone).words)
    roles = find_roles(lm, corpora[0], passages=corpora[1], examples=0)
    claims = {claim.role: claim for claim in roles.claims[roles.head_place(head)]}
    assert card["looks"].facts
    for one in card["looks"].facts:
        claim = claims[one.label]
        assert one.value == pytest.approx(claim.tested, rel=1e-5) and one.chance == pytest.approx(
            claim.chance, rel=1e-5
        )
        assert one.mark == ("holds" if claim.holds else "does not hold")
    shown = {one.label for one in card["looks"].facts}
    assert {claim.role for claim in claims.values() if claim.holds} <= shown
    composition = mh.composition(lm).to_pandas()
    for name, own, other in (("listens", "reader", "writer"), ("heard", "writer", "reader")):
        best = composition[composition[own] == head].groupby(other)["z"].max().sort_values(ascending=False)
        facts = card[name].facts
        if facts:
            links = eval(card[name].command, {"mh": mh, "lm": lm})
            assert {(one.label, one.value) for one in facts} <= {
                (str(getattr(link, other)), float(f"{link.z:.6g}")) for link in links
            }
        assert [one.head for one in facts] == best.index[: len(facts)].tolist() and len(facts) == min(4, len(best))
        assert [one.value for one in facts] == pytest.approx(best.tolist()[: len(facts)], rel=1e-5)
        assert [one.mark for one in facts] == ["" if one.value >= 2 else "not beyond chance" for one in facts]
    nearest = head_families(lm, texts).nearest(head, 4)
    assert [one.head for one in card["neighbours"].facts] == [str(other) for other, _ in nearest]
    assert [one.value for one in card["neighbours"].facts] == pytest.approx([value for _, value in nearest], rel=1e-3)
    probe = ask_probes(lm)["retrieval"]
    reach = [one for one in card["reach"].facts if one.unit == "share"]
    if reach:
        assert reach[0].value == pytest.approx(probe.scores[card.head].score, abs=1e-6)
    else:
        assert card["reach"].note.endswith(probe.says)
        assert probe.scores is not None or "--probes" not in card["reach"].command
    for name, call in (("why", why), ("writes", writes)):
        if not card[name].facts:
            continue
        answer = run(card[name].command, lm, call)
        if name == "why":
            values = [answer.log_odds, max(row.share for row in answer.query)]
        else:
            values = [answer.copying.value, *(of.value for of in answer.matching.values())]
        of_card = [one.value for one in card[name].facts if one.value is not None][: len(values)]
        assert of_card == pytest.approx(values, rel=1e-4, abs=1e-5)


def run(command, lm, call):
    """The library's call for a command of a card: a line of the command line, or of Python, with the same values."""
    if command.startswith("manyheads "):
        _, _, text, *options = shlex.split(command)
        named = dict(zip(options[::2], options[1::2], strict=True))
        assert named["--model"] == lm.name
        places = {
            name: int(named[option]) for name, option in (("query", "--from"), ("key", "--to")) if option in named
        }
        return call(lm, *((text, named["--head"]) if places else (named["--head"], text)), **places)
    node = ast.parse(command, mode="eval").body
    first, *others = node.args
    assert first.id == "lm"
    values = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
    return call(lm, *map(ast.literal_eval, others), **values)


def test_link_of_a_map_is_of_a_row_that_sees_several_tokens(small, monkeypatch):
    """The first row of a causal head gives the first token all its weight, whatever the head does."""
    shorten(monkeypatch)
    of_model, label = Measured(small[0]), role("sink the first token", 0.9, 0.1, "first_mass")
    with unchecked():
        vars(of_model)["labels"] = SimpleNamespace(role_of=lambda head: label, sinks=Sinks())
        shown = of_model.shown(Head("", 1, 2))
    assert len(shown) == 12 and all(one.query > 0 and one.key == 0 for one in shown)
    for one in shown:  # the label's own share: of the rows behind the first, what goes to the first token
        rows = of_model.weights(Head("", 1, 2), one.place)[1:]
        assert one.share == pytest.approx(float(rows[:, 0].mean())) and one.weight == pytest.approx(
            float(rows[:, 0].max())
        )
    assert 0 < shown[-1].share <= shown[0].share < 1


def test_link_of_a_head_that_looks_near_is_at_no_sink_that_is_near(small, monkeypatch):
    """And what stands beside a map says of how many texts its mean is: those in which enough rows can do it."""
    shorten(monkeypatch)
    head, of_model, label = Head("", 1, 2), Measured(small[0]), role("local", 0.9, 0.1, "local_mass")
    with unchecked():
        vars(of_model)["labels"] = SimpleNamespace(role_of=lambda head: label, sinks=Sinks(first=True))
        shown, pool = of_model.shown(head), of_model.pool_texts
        words = {one.words.partition("; ")[2] for one in _maps(of_model, head)}
    assert all(one.key > 0 and abs(one.query - one.key) <= 3 for one in shown)
    assert words == {f"{sum(one.share for one in shown) / len(pool):.0%} in the mean of {len(pool)} short texts"}
    copies = role("duplicate token", 0.9, 0.1, "duplicate_mass")
    with unchecked():
        of_model.labels.role_of = lambda head: copies
        few = len(of_model.shown(head))
        words = {one.words.rpartition(" mean of ")[2] for one in _maps(of_model, head)}
    assert 0 < few < len(pool) and words == {f"{few} short text{'s' * (few > 1)}"}


def test_maps_are_those_of_the_model_itself(small):
    lm, made = small
    model = tiny_llama()
    model.set_attn_implementation("eager")
    for card in made:
        assert len(card.maps) == 3
        for one in card.maps:
            ids = lm.tokenizer(one.text, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                maps = model(ids, output_attentions=True).attentions
            expected = maps[card.head.layer][0, card.head.index]
            drawn = torch.tensor([one.row(query) for query in range(len(one.tokens))])
            assert drawn.shape == expected.shape and (drawn - expected).abs().max() < 6e-4
            assert one.weight == pytest.approx(float(expected[one.query, one.key]), abs=1e-4)
            words = shlex.split(one.command.replace("$'", "'"))
            assert words[:3] == ["manyheads", "head", str(card.head)]


def test_head_of_the_first_layer_has_nobody_before_it(small):
    first, last = small[1]
    assert first["listens"].facts == () and first["listens"].note == "no head is before it"
    assert last["heard"].facts == () and last["heard"].note == "no head is behind it"
    writers = {one.label for one in first["why"].facts[1:]}
    assert writers <= {"query: embedding", "key: embedding"}
    assert first.place == "head 1 of 6 in layer 0 of 3, both counted from 0; key/value head 0, shared with L0H0"


def test_card_is_plain_data_and_back(small):
    for card in small[1]:
        assert Card.from_dict(json.loads(json.dumps(card.to_dict()))) == card
        assert str(card.head) in repr(card) and "\n" not in repr(card) and card.sentence in str(card)
        with pytest.raises(KeyError, match="'nothing' is not a section of a card: evidence, looks, why"):
            card["nothing"]


def test_model_without_a_tokenizer_says_in_one_line_what_is_not_there(monkeypatch):
    lm = mh.load(tiny_llama(), name="bare", tokenizer=False)
    card = card_of(lm, "L1H2", remember=False)
    message = "bare has no tokenizer, so no text can be read: load it with tokenizer=."
    assert card.sentence == message and card.maps == () and card.loss is None
    for name in ("looks", "lost", "neighbours", "reach"):
        assert (card[name].facts, card[name].note) == ((), message)
    assert card["listens"].facts, "composition rests on weights alone"


def test_heads_that_are_not_there_and_models_that_are_none_are_refused(small):
    refuses(HeadError, "L9H9", cards, small[0], "L9H9")
    refuses(HeadError, "'L1' is 6 heads, and a card is about one: cards", card_of, small[0], "L1")
    refuses(ModelError, "a str is not a loaded model: load it first", cards, "small")
    refuses(ModelError, "there is no card to write", write_cards, "site", [])


# --------------------------------------------------------------------------------------------------------- the sentence


def role(name, score, chance, statistic, given=None):
    evidence = Evidence(statistic, score, chance, score - 0.01, score + 0.01, num_queries=9, given=given, words="...")
    return SimpleNamespace(name=name, head=Head("", 1, 2), evidence=evidence)


def measured(label, claims=(), losses=None, probes=None, causal=False):
    """What the sentence reads of `Measured`."""
    of_head = sorted((claim for claim in claims if claim.holds), key=lambda claim: -claim.distance)
    return SimpleNamespace(
        lm=SimpleNamespace(name="some", spec=SimpleNamespace(site_of=lambda head: SimpleNamespace(causal=causal))),
        name="some",
        labels=SimpleNamespace(role_of=lambda head: label),
        roles=SimpleNamespace(of_head=lambda head: of_head, claims=[claims], head_place=lambda head: 0),
        probes=probes or {}, losses=losses or {}, num_texts=64,
    )  # fmt: skip


def claim(role, tested, chance, holds=True, asks="Which head looks at x?"):
    return SimpleNamespace(
        role=role, tested=tested, chance=chance, holds=holds, asks=asks, low=tested, high=tested, num_queries=9,
        distance=(tested - chance) / (1 - chance),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("label", "claims", "sentence"),
    [
        (role("previous token", 0.62, 0.05, "previous_mass"), [claim("local", 0.9, 0.2)],
         "Mostly looks at the token before (62.0% of its attention, 5.0% by chance)."),
        (role("induction", 0.31, 0.02, "induction_mass"), [], "Often looks at what followed an earlier copy (31.0% of "
         "its attention where there is one, 2.0% by chance)."),
        (role("induction", 0.12, 0.02, "induction_mass", 0.7), [], "Looks more than chance at what followed an earlier "
         "copy (12.0% of its attention where there is one, 2.0% by chance; 70.0% of what does not go to a sink)."),
        (role("sink the first token", 0.9, 0.1, "sink_mass"), [claim("first token", 0.9, 0.1)],
         "Rests on the first token with 90.0% of its attention."),
        (role("broad", 2.4, 3.0, "entropy"), [], "Reads everything a little (80% of the largest entropy)."),
        # A third of all on one token is not a little.
        (role("broad", 2.3, 3.0, "entropy"), [claim("sink", 0.35, 0.03, False), claim("first token", 0.2, 0.03, False)],
         "Reads everything a little (77% of the largest entropy), but for the 35.0% of its attention that goes to a "
         "sink."),
        (role("broad", 2.3, 3.0, "entropy"), [claim("sink", 0.2, 0.03, False)],
         "Reads everything a little (77% of the largest entropy)."),
        (role("unlabelled", 0.2, 0.1, "local_mass"), [claim("local", 0.3, 0.25), claim("self", 0.1, 0.1, False)],
         "No one thing: it is an answer to 1 of 2 questions, and to none by much."),
        (role("unlabelled", 0.2, 0.1, "local_mass"), [claim("self", 0.1, 0.1, False)],
         "No one thing: it is an answer to none of 1 questions."),
        (role("unlabelled", 0.2, 0.1, "local_mass"),
         [claim("det: dependent to governor", 0.8, 0.3, asks="Which head looks from a determiner to its noun?")],
         "No one thing on ordinary texts, but it looks from a determiner to its noun (80.0%, 30.0% by chance)."),
        (role("broad", 2.7, 3.0, "entropy"),
         [claim("two rarest words", 0.5, 0.1, asks="Which head looks at rare words most of all (Voita et al.)?"),
          claim("rarest word", 0.4, 0.1, asks="Which head looks at the rarest word?")],
         "Reads everything a little (90% of the largest entropy); looks at rare words most of all (50.0% of the "
         "tokens that look most at a word, 10.0% by chance)."),
        (role("unlabelled", 0.2, 0.1, "local_mass"), [claim("sink", 0.5, 0.1), claim("first token", 0.5, 0.1)],
         "No one thing: 50.0% of its attention goes to a sink, and it is an answer to no question about words."),
        (role("unlabelled", 0.2, 0.1, "local_mass"), [claim("sink", 0.5, 0.1), claim("local", 0.3, 0.25)],
         "No one thing: 50.0% of its attention goes to a sink, and it is an answer to 1 of the questions about words, "
         "by little."),
    ],
)  # fmt: skip
def test_sentence_is_chosen_by_rules_from_the_evidence(label, claims, sentence):
    with unchecked():
        clauses = clauses_of(measured(label, claims), label.head, None)
    assert sentence_of(clauses, "") == sentence
    assert all(clause.fact.command.startswith("manyheads ") for clause in clauses)


def test_causal_head_looks_at_no_token_after_it():
    near = claim("local", 0.6, 0.3, asks="Which head looks at tokens within 3 either way?")
    local, punctuation = role("local", 0.6, 0.3, "local_mass"), role("punctuation", 0.4, 0.2, "punctuation_mass")
    numbers = "60.0% of its attention, 30.0% by chance"
    for causal, saying in ((False, "tokens within 3 either way"), (True, "the token itself and the 3 before it")):
        with unchecked():
            of_label = clauses_of(measured(local, causal=causal), local.head, None)
            of_claim = clauses_of(measured(punctuation, [near], causal=causal), local.head, None)
        assert sentence_of(of_label, "") == f"Mostly looks at {saying} ({numbers})."
        assert f"; looks at {saying} (60.0%, 30.0% by chance)" in sentence_of(of_claim, "")


@pytest.mark.parametrize(
    ("level", "change", "low", "words"),
    [
        ("stands out", 0.2, 0.1, "and is missed more than any of the random heads"),
        ("stands out", -0.2, -0.3, "and without it the model does better here"),
        (
            "stands out",
            0.2,
            -0.1,
            "and leaving it out changes more than leaving out any random head, but not on every text alike",
        ),
        ("barely", 0.2, 0.1, "and is hardly missed: at least half of the random heads matter as much"),
        ("barely", 0.2, -0.1, "and is hardly missed: at least half of the random heads matter as much"),
        ("more than most", 0.2, 0.1, "and what is lost without it does not set it apart from random heads"),
        ("no control", 0.2, 0.1, ""),
    ],
)
def test_loss_in_the_sentence_is_the_verdicts(level, change, low, words):
    label = role("broad", 2.4, 3.0, "entropy")
    loss = Loss(change, low, -0.1 if change < 0 else 0.3, "nats a token", level, "...")
    with unchecked():
        (*_, last) = clauses_of(measured(label, losses={label.head: loss}), label.head, None)
    assert last.words == words and last.fact.words == "..."


@pytest.mark.parametrize(
    ("value", "chance", "words"),
    [
        (0.45, 0.06, "it does"), (-0.77, 0.06, "it looks away from it"), (0.39, 0.06, "neither that nor away from it"),
        (-0.22, 0.05, "neither that nor away from it"), (0.45, 0.16, "neither that nor away from it"),
    ],
)  # fmt: skip
def test_score_of_what_a_head_looks_for_counts_beyond_chance_on_either_side(value, chance, words):
    assert _way(TraceShare(value, chance)) == words


def test_role_at_an_offset_says_on_which_side():
    assert (PLACES["offset -2"][1], PLACES["offset +3"][1]) == ("the token 2 places before", "the token 3 places after")


def test_clauses_without_words_leave_no_trace_in_the_sentence():
    assert (
        sentence_of([Clause("one", Fact("a")), Clause("", Fact("b")), Clause("and two", Fact("c"))], "")
        == "One, and two."
    )
    assert sentence_of([], "nothing is known.") == "nothing is known."


# ---------------------------------------------------------------------------------------------------------- remembering


def test_cards_are_remembered_and_damaged_ones_made_again(small, monkeypatch, tmp_path):
    lm, (first, _) = small
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path))
    shorten(monkeypatch)
    calls = []
    monkeypatch.setattr("manyheads.cards.sections.card_of", lambda measured, head: (calls.append(head), first)[1])
    (made,) = cards(lm, "L0H1")
    (again,) = cards(lm, "L0H1")
    assert calls == [Head("", 0, 1)] and "remembered" in made.notes[NOTE] and str(tmp_path) in again.notes[NOTE]
    assert replace(again, notes=made.notes) == made
    (file,) = folder_of(lm).iterdir()
    file.write_bytes(gzip.compress(b'{"model": "small"}'))
    cards(lm, "L0H1")
    cards(lm, "L0H1", remember=False)
    assert len(calls) == 3
    monkeypatch.setenv("MANYHEADS_CACHE", str(file / "below-a-file"))
    (made,) = cards(lm, "L0H1")
    assert made.notes[NOTE].startswith("measured now, and not remembered: ")


def test_losses_of_many_heads_rest_on_few_texts_and_say_so_and_are_remembered(small, monkeypatch, tmp_path):
    lm, head = small[0], Head("", 0, 1)
    shorten(monkeypatch)
    monkeypatch.setattr("manyheads.cards.evidence.Runner.many_heads", 17)
    monkeypatch.setattr("manyheads.cards.evidence.FEW_TEXTS", 3)
    losses = Measured(lm, [head], folder=tmp_path).losses
    command = loss_fact(Measured(lm), head, losses[head]).command
    assert command == "mh.effect(lm, mh.Ablate('L0H1'), reading_of(lm).spread(3))"
    alone = eval(command, {"mh": mh, "reading_of": short_readings(PAGES), "lm": lm})
    assert alone.num_texts == 3 and losses[head].change == pytest.approx(alone.change, rel=1e-3, abs=2e-6)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Measured, "_losses", lambda *args: pytest.fail("measured again"))
        assert Measured(lm, [head], folder=tmp_path).losses == losses
    torn = (b"", b"no gzip", whole[:20], whole[:10] + b"\xff" * 20)
    for damaged in (*torn, *map(gzip.compress, (b"[1]", b"{", b'{"L0H1": 1}', b'{"L0H1": [1]}'))):
        file.write_bytes(damaged)
        with monkeypatch.context() as patch:
            patch.setattr(Measured, "_losses", lambda *args: losses)
            assert Measured(lm, [head], folder=tmp_path).losses == losses
        assert file.read_bytes() == whole


# ------------------------------------------------------------------------------------------------------------- the site


def hostile(head="L0H1"):
    """A card whose every text would do harm where it is markup."""
    words = {"label": HOSTILE, "words": HOSTILE, "command": HOSTILE}
    names = ("evidence", "looks", "why", "writes", "listens", "heard", "lost", "reach", "neighbours")
    facts = (
        Fact(**words, value=0.2, unit="share", chance=0.1, head=head),
        Fact(HOSTILE, 0.1, "nats a token", mark="barely"),
    )
    sections = tuple(
        Section(name, f"{name}? {HOSTILE}", facts[::-1] if name == "lost" else facts, HOSTILE, HOSTILE)
        for name in names
    )
    tokens = (HOSTILE, "<b>", "\u202eabc")
    one = TextMap(HOSTILE, tokens, ((1000,), (500, 500), (1, 2, 997)), 1, 0, 0.5, HOSTILE, HOSTILE)
    notes = {"python": HOSTILE, "labels": HOSTILE}
    return Card(f"model {HOSTILE}", Head.parse(head), HOSTILE, 0, HOSTILE, HOSTILE, (one,), sections, (HOSTILE,), notes)


class Markup(HTMLParser):
    """Which elements and handlers a page has."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.scripts = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "script":
            self.scripts.append(dict(attrs)["src"])


def test_hostile_texts_are_escaped_on_every_page(tmp_path):
    write_cards(tmp_path / "site", [hostile("L0H1"), hostile("L0H2")], title=HOSTILE)
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) == 3
    for page in pages:
        markup = Markup(page.read_text(encoding="utf-8"))
        assert markup.scripts == ["cards.js" if page.name == "index.html" else "../cards.js"]
        assert "img" not in markup.names and "b" not in markup.names
        assert not [name for name in markup.attributes if name.startswith("on") or name == "style"]
        assert "default-src 'none'" in unescape(page.read_text(encoding="utf-8"))


def test_site_replaces_an_earlier_one_and_nothing_else(tmp_path):
    site = tmp_path / "site"
    assert write_cards(site, [hostile("L0H1"), hostile("L0H2")]).startswith("2 cards of model ")
    write_cards(site, [hostile("L0H3")])
    assert [page.name for page in (site / "heads").iterdir()] == [
        page.name for page in (site / "heads").glob("*l0h3.html")
    ]
    (site / "notes.txt").write_text("mine")
    before = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    refuses(FileAccessError, r"'notes.txt' in it is not of an earlier save", write_cards, site, [hostile()])
    refuses(FileAccessError, "its folder does not exist", require_writable, tmp_path / "no" / "site")
    assert {file: file.read_bytes() for file in site.rglob("*") if file.is_file()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["site"]


def test_site_links_every_card_and_no_page_that_is_not_there(small, tmp_path):
    write_cards(tmp_path / "site", small[1])
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for card in small[1]:
        name = f"heads/small-{str(card.head).lower()}.html"
        assert index.count(f'href="{name}"') == 2  # in the picture, and in the list
        page = (tmp_path / "site" / name).read_text(encoding="utf-8")
        for address in re.findall(r'href="([^"#]+)', page):
            assert (tmp_path / "site" / "heads" / address).is_file()
        assert len(page) < 60_000
    assert index.count('<span class="group">') == len({(card.head.layer, card.group) for card in small[1]})


def test_colours_of_the_sites_maps_are_the_studios():
    stops = {}
    for file in ("web/src/lib/draw/colour.ts", "src/manyheads/cards/pages/cards.js"):
        text = (Path(__file__).parents[2] / file).read_text(encoding="utf-8")
        stops[file] = re.findall(r"^const (LIGHT|DARK)(?:: Rgb\[\])? = (\[\[.*\]\]);$", text, re.MULTILINE)
    first, second = stops.values()
    assert first == second and len(first) == 2


def test_papers_and_inks_of_the_cards_are_those_of_published_recordings():
    shades = []
    for file in ("web/public/site.css", "src/manyheads/cards/pages/cards.css"):
        text = (Path(__file__).parents[2] / file).read_text(encoding="utf-8")
        shades.append(dict(re.findall(r"^  --([a-z0-9-]+): (light-dark\(.*\));$", text, re.MULTILINE)))
    recordings, of_cards = shades
    assert len(recordings) >= 7 and recordings.items() <= of_cards.items()


# --------------------------------------------------------------------------------------------------------- the commands


@pytest.fixture
def ready(monkeypatch, tmp_path, minilm, small):
    """A card of each head that is asked for, without measuring: the command's own part is quick."""
    asked = []

    def made(lm, heads=None, *, remember=True, on_step=None):
        chosen = lm.spec.heads.heads if heads is None else heads
        asked.append((lm.name, len(chosen), remember))
        return tuple(replace(small[1][1], model=lm.name, head=head) for head in chosen)

    monkeypatch.setattr("manyheads.cards.cards", made)
    return asked


def test_card_command_shows_the_sentence_and_every_section(ready, capsys):
    assert main(["card", "L2H9", "--model", "minilm", "--no-cache", "--device", "cpu", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("L2H9") and "What is lost without it?" in out and "mh.composition(lm)" in out
    assert ready == [("minilm", 1, False)]
    assert main(["card", "L2H9", "--model", "minilm", "--json"]) == 0
    assert Card.from_dict(json.loads(capsys.readouterr().out)).head == Head("", 2, 9)
    assert main(["card", "L9H9", "--model", "minilm"]) == 2
    assert "L9H9: minilm has layers 0-5 and heads 0-11." in capsys.readouterr().err


def test_publish_writes_cards_of_models_in_one_site(ready, capsys, tmp_path):
    site = tmp_path / "site"
    line = ["publish", "--cards", "minilm", "--cards", "tiny-code", "--out", str(site)]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Wrote {site}: 104 cards of minilm, tiny-code, ")
    assert len(list((site / "heads").iterdir())) == 104
    assert ready == [("minilm", 72, True), ("tiny-code", 32, True)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["publish", "--cards", "minilm"], "publish writes one folder, and none was given: name it once"),
        (["publish", "here", "--out", "there", "--cards", "minilm"], "here and --out there were given: name it once"),
        (["publish", "here", "--cards", "minilm", "--cards", "minilm"], "a model is named twice"),
        (["publish", "here", "--cards", "minilm", "--text", "a"], "--cards makes a site of cards alone, and --text"),
        (["publish", "no/where", "--cards", "minilm"], "cannot write .*no/where: its folder does not exist"),
    ],
)
def test_publish_of_cards_refuses_before_a_model_is_loaded(line, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("manyheads.models.load", lambda *args, **options: pytest.fail("a model was loaded"))
    assert main(line) == 2
    err = capsys.readouterr().err
    assert re.search(message, err) and err.count("\n") == 1 and not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------------------------------------------- slow


@pytest.mark.slow
def test_cards_of_minilm_say_what_its_commands_say(minilm):
    made = cards(minilm, "L0H2, L2H9, L5H11", remember=False)
    for card in made:
        assert_numbers(minilm, card, own_corpora("minilm"), reading_of(minilm).spread(64))
    assert made[0].sentence.startswith("Mostly looks at the token before (98.8% of its attention")


@pytest.mark.slow
def test_card_of_smollm2_says_what_its_commands_say(smollm2):
    (card,) = cards(smollm2, "L5H6", remember=False)
    assert card.role == "duplicate token" and "the same token elsewhere" in card.sentence
    assert_numbers(smollm2, card, own_corpora("smollm2"), reading_of(smollm2).spread(64))
