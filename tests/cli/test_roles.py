"""`manyheads roles`: what it shows is what the library found; files, questions and refusals."""

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

import manyheads as mh
from manyheads.cli.arguments import ModelChoice
from manyheads.cli.roles.command import page, ranking, write_report
from manyheads.corpora import page_texts
from manyheads.errors import FileAccessError, StatisticError
from manyheads.roles import RULES, PageLabels, failing
from manyheads.roles.labels import evidence_of
from manyheads.roles.probes import all as probing
from manyheads.roles.results import Example
from manyheads.roles.rules import ASKED, SINK_RULE, syntax_rules
from manyheads.texts import Sinks
from tests.figures.pictures import HOSTILE
from tests.figures.test_roles import claim_of, label_of, roles_of
from tests.refusals import refuses

from ..models.tiny import save_tiny, tiny_gpt2, tiny_tokenizer
from .conftest import assert_refused

TEXTS = 48  # of which at least ten fall in each half


@pytest.fixture
def page_file(tmp_path):
    path = tmp_path / "page.txt"
    path.write_text("\n".join(page_texts()[:TEXTS]) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_heads_and_questions_are_what_the_library_found(run, page_file, minilm):
    ran = run("roles", "--corpus", page_file, "--lines")
    found = mh.find_roles(minilm, page_texts()[:TEXTS], examples=0)
    assert ran.code == 0 and ran.lines[0] == f"minilm: what each head does over file {page_file}"
    named = sum(each.name != "unlabelled" for each in found)
    assert ran.lines[1].startswith(f"{named} of 72 heads have a role. Surest: L0H2 previous token (")
    assert "attention is not effect" in ran.out
    best = found.ranked("previous token", 1)[0]
    _heads, *rows = [line for line in ran.lines if line.startswith("  previous token")]  # by label, then by question
    assert len(rows) == 1 and f"{best.score:.0%}" in rows[0] and str(best.head) in rows[0]
    assert f"manyheads roles --corpus {page_file}" in ran.out


def test_json_and_the_saved_table_hold_every_claim(run):
    Path("few.txt").write_text("\n".join(page_texts()[:6]) + "\n", encoding="utf-8")
    line = ("roles", "--corpus", "few.txt", "--lines", "--json")
    assert "numbers of the corpus: measured now, kept for the next run in " in run(*line).err
    assert "numbers of the corpus: of an earlier run, kept in " in run(*line, "--ask", "induction").err
    ran = run(*line, "--no-cache", "--out", "claims.csv")
    assert "numbers of the corpus" not in ran.err
    data, frame = json.loads(ran.out), pd.read_csv("claims.csv")
    assert len(data["claims"]) == len(frame) and data["texts"] == 6 and len(data["heads"]) == 72
    claim = next(each for each in data["claims"] if each["head"] == "L0H2" and each["role"] == "previous token")
    assert 0.9 < claim["score"] <= 1 and claim["effect"] == "not measured" and not claim["holds"]  # of too few texts
    assert data["failures"] == {"count": 0, "named": []}


@pytest.mark.slow
def test_a_question_ranks_the_heads(run, page_file):
    ran = run("roles", "--corpus", page_file, "--lines", "--ask", "looks at the token before", "--top", "3")
    assert ran.lines[0] == "Which head looks at the token before?"
    assert ran.lines[2].split()[0] == "L0H2" and "attention is not effect" in ran.out
    assert_refused(run("roles", "--corpus", page_file, "--lines", "--ask", "token"), "may mean several roles")


@pytest.mark.slow
def test_a_role_of_ones_own_comes_from_a_file(run, page_file, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def the_one_before(pieces):\n    return [None, *range(len(pieces) - 1)]\n", encoding="utf-8")
    ran = run("roles", "--corpus", page_file, "--lines", "--pattern", str(own), "--ask", "the one before")
    assert "the one before" in ran.lines[0] and ran.lines[2].split()[0] == "L0H2"
    own.write_text("x = 1\n", encoding="utf-8")
    assert_refused(run("roles", "--corpus", page_file, "--pattern", str(own)), "defines no function")
    own.write_text("def f(:\n", encoding="utf-8")
    assert_refused(run("roles", "--corpus", page_file, "--pattern", str(own)), "cannot be run: SyntaxError")
    assert_refused(run("roles", "--corpus", page_file, "--pattern", "none.py"), "there is no such file")


@pytest.mark.parametrize(("arguments", "said"), [
    (("--corpus", "none.txt"), "none.txt"),
    (("--out", "claims.txt"), "cannot tell from that ending what to write"),
    (("--report", "roles.pdf"), "cannot tell from that ending what to write"),
    (("--plot", "nowhere/roles.svg"), "there is no folder"),
    (("--plot", "a.svg", "--plot=b.svg"), "give --plot once: it was given 2 times"),
    (("--kind", "csv"), "--kind csv: there is no such kind of text. Use one of text, jsonl, conllu"),
    (("--corpus", "-", "--resume", "run"), "stdin cannot be resumed"),
    (("--resume", "."), "holds other.txt, which is not part of such a run"),
    (("--corpus", "other.txt", "--ask", "zzz"), "no head was asked for 'zzz'"),
    (("--corpus", "other.txt", "--ask", "copying"), "is a probe, which was not run"),
])  # fmt: skip
def test_bad_input_is_one_line_before_anything_is_loaded(run, monkeypatch, arguments, said):
    monkeypatch.setattr("manyheads.cli.roles.command.load_model", lambda *_: pytest.fail("loaded"))
    Path("other.txt").write_text("A cat sat.", encoding="utf-8")
    assert_refused(run("roles", *arguments), said)


@pytest.mark.slow  # a whole search, for its notes
def test_a_page_without_labels_says_why_and_names_texts_that_failed(run):
    lines = ['{"text": "A cat sat on the mat."}', *["{broken"] * 12]
    Path("some.jsonl").write_text("\n".join(lines), encoding="utf-8")
    ran = run("roles", "--corpus", "some.jsonl")
    assert ran.lines[1] == "0 of 72 heads have a role: too few queries for a role"
    assert "claims were tried" not in ran.out and "By question" not in ran.out and "Roles (" not in ran.out
    assert ran.out.count("this line is not JSON") == 10 and "… and 2 more (all in --json)" in ran.out
    assert "note: 12 texts could not be measured, and were left out" in ran.err


def test_an_error_in_a_pattern_is_the_patterns(run):
    Path("mine.py").write_text("def f(pieces):\n    x = 1\n    return 1 / 0\n", encoding="utf-8")
    Path("some.txt").write_text("A cat sat.", encoding="utf-8")
    said = "the pattern 'f' (mine.py, line 3) failed on text 'A cat sat.': ZeroDivisionError: division by zero."
    assert_refused(run("roles", "--corpus", "some.txt", "--pattern", "mine.py"), said)


@pytest.mark.slow  # a whole search, for one line
def test_long_texts_are_counted_as_texts_and_windows(run):
    Path("long.txt").write_text(" ".join(["a cat sat on the mat"] * 100), encoding="utf-8")
    ran = run("roles", "--corpus", "long.txt")
    assert (
        ran.lines[2].startswith("texts     1 text, read in 2 windows, ") and "  windows: the text is longer" in ran.out
    )


def said_of(roles, role=None):
    """The page, or a ranking, of roles made up."""
    notes = {"model": "tiny", "labels": "attention is not effect: ..."}
    found = replace(roles, notes=notes)
    return [
        line.plain
        for line in (page(found, "some", ModelChoice("minilm"), ["-"]) if role is None else ranking(found, role, 2))
    ]


def test_the_tested_figure_has_a_star_and_guesses_and_the_rule_have_columns_of_their_own():
    up, mass = syntax_rules(["det"])[0], RULES[0]
    figures = {
        "score": 1.0000106, "given": 0.62, "low": 0.55, "high": 0.7, "over_low": 0.034, "over_high": 0.081,
        "chances": {"uniform": 0.1}, "chosen_excess": 0.1, "num_queries": 500, "num_texts": 90, "holds": False,
        "q_value": 3.1e-57, "norm": 0.4,
    }  # fmt: skip
    guessed = {"baselines": {"det.to_governor.mode": 0.37}, "beyond": {"det.to_governor.rule": 0.41}}
    asked = said_of(roles_of(1, 1, (up,), **figures, **guessed), up.role)
    assert asked[2].split() == ["L0H0", "100%", "62%*", "40%", "10%", "37%", "41%", "+3…+8", "55–70", "500", "<0.001"]
    assert asked[3].strip().startswith("does not hold: ")
    assert asked[0] == "Which head looks from a determiner to the word it depends on?"
    assert {line.split()[0] for line in asked[5:-1]} >= {"words", "norm", "guess", "rule", "above", "95%", "q"}
    shown = said_of(roles_of(1, 1, (mass,), **{**figures, "holds": True, "q_value": 0.0123}))
    (row,) = [line for line in shown if line.startswith("  previous token") and "L0H0" in line and "%" in line]
    assert row.split()[2:] == ["L0H0", "100%*", "62%", "10%", "55–70", "500"]
    assert any("rows of all tokens, also [CLS] and [SEP]" in line for line in shown)
    assert not any("--corpus -" in line for line in shown)
    assert "note      look and the studio rest on the bundled texts alone: some roles differ" in shown


def test_the_surest_role_is_the_furthest_from_chance_wherever_roles_are_ranked():
    """61 % beside a chance of 58 % is 9 % of the way to always, whatever fixed guesses get; 47 % beside 6 % is 44 %."""
    up, mass = syntax_rules(["det"])[0], RULES[0]
    found = roles_of(1, 2, (up, mass), holds=True, num_queries=500)
    shares = {up.role: (0.61, 0.58), mass.role: (0.47, 0.06)}
    claims = tuple(
        tuple(
            replace(each, score=score, given=score, chance=chance, chances={"uniform": chance}, chosen_excess=order,
                    baselines=dict.fromkeys(each.baselines, 0.1))
            for each in mine
            for (score, chance), order in [(shares[each.role], float((index == 0) == (each.role == up.role)))]
        )
        for index, mine in enumerate(found.claims)
    )  # fmt: skip
    labels = tuple(label_of(claim, name) for claim, name in ((claims[0][0], up.role), (claims[1][1], mass.role)))
    found = replace(found, claims=claims, labels=labels)
    verdict = next(line for line in said_of(found) if "Surest: " in line)
    assert verdict.partition("Surest: ")[2].startswith("L0H1 previous token (47%, chance 6%), L0H0 det")
    assert [claim.role for claim in found.of_head("L0H0")] == [mass.role, up.role]
    html = found._repr_html_()
    assert html.index("L0H1") < html.index("L0H0")
    assert PageLabels(tuple(labels), {}, Sinks(), {}, 3, 7, "measured now").surest_head == labels[1].head


def test_the_legend_explains_the_columns_that_are_there_and_no_others():
    up, mass = syntax_rules(["det"])[0], RULES[0]
    figures = {"score": 0.9, "num_queries": 500, "holds": True, "chances": {"uniform": 0.1}}
    guessed = {"given": 0.62, "baselines": {"det.to_governor.mode": 0.37}}
    for rule, more in ((mass, {}), (up, guessed)):
        shown = said_of(roles_of(1, 1, (rule,), **figures, **more))
        titles = next(line for line in shown if line.split()[:2] == ["head", "score"]).split()
        begin = next(index for index, line in enumerate(shown) if line.startswith("  score   "))
        explained = [line.split()[0] for line in shown[begin : shown.index("", begin)]]
        assert explained == titles[1:], rule.role


def test_questions_that_come_to_the_same_are_one_row_and_the_head_of_a_word_is_its_governor(tmp_path):
    """On every surface: a head is a head of attention. As people read it and in data the role has one name."""
    first = next(rule for rule in ASKED if rule.role == "first token")
    figures = {"score": 0.73, "low": 0.7, "high": 0.8, "num_queries": 500, "holds": True, "chances": {"uniform": 0.1}}
    shown = said_of(roles_of(1, 1, (SINK_RULE, first), **figures))
    assert len([line for line in shown if line.startswith("  sink = first token ")]) == 1
    assert not any(line.startswith(("  sink  ", "  first token")) for line in shown)
    up = syntax_rules(["det"])[0]
    found = roles_of(1, 1, (up,), score=0.9, given=0.9, num_queries=500, holds=True, chances={"uniform": 0.1})
    shown = said_of(found)
    name = "det: dependent to governor"
    assert any(line.startswith(f"  {name} ") for line in shown) and not any("to head" in line for line in shown)
    found.save(tmp_path / "claims.csv")
    frame = pd.read_csv(tmp_path / "claims.csv")
    claims = found.to_dict()["claims"]
    assert set(frame["role"]) == {claim["role"] for claim in claims} == {name} == {up.role}
    assert set(frame["statistic"]) == {"det.to_governor"} and found.role_named("Dependent to governor") == name
    refuses(StatisticError, "no head was asked for 'dependent to head'", found.role_named, "dependent to head")
    down = syntax_rules(["det"])[1]
    assert down.role == "det: governor to dependent" and down.statistic == "det.to_dependent"
    assert "governor of a det" in evidence_of(up, found.claims[0][0]).words
    meanings = " ".join(one.meaning for one in found.table.statistics if one.name.startswith("det."))
    assert "governor" in meanings and " head" not in meanings


def test_only_questions_with_enough_cases_are_nearest():
    found = roles_of(1, 1, (RULES[0], RULES[2], RULES[3]), holds=False)
    counts = dict(zip(found.questions, (99, 100, 0), strict=True))
    claims = tuple(tuple(replace(each, num_queries=counts[each.role]) for each in mine) for mine in found.claims)
    held = replace(claims[0][1], role="held", holds=True, num_queries=500)
    shown = said_of(replace(found, claims=((*claims[0], held),)))
    (line,) = [line for line in shown if "more are answered by no head" in line]
    assert "2 more" in line and line.endswith("nearest: self (L0H0)")
    assert "  1 not asked: these texts do not ask it" in shown


@pytest.mark.slow
def test_several_files_make_one_corpus_and_a_bad_line_ends_nothing(run, tmp_path):
    texts = page_texts()[:40]
    (tmp_path / "a.txt").write_text("\n\n".join(texts[:20]), encoding="utf-8")
    lines = [json.dumps({"words": text}) for text in texts[20:]]
    (tmp_path / "b.jsonl").write_text("\n".join([*lines, "{broken"]), encoding="utf-8")
    data = json.loads(run("roles", "--corpus", "a.txt", "b.jsonl", "--field", "words", "--json").out)
    assert data["texts"] == 40 and data["origin"] == "2 files" and "b.jsonl" in data["notes"]["failed"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A causal model with positions for a needle."""
    made = tiny_gpt2(n_positions=230, n_layer=2)
    return str(save_tiny(made, tmp_path_factory.mktemp("probed") / "gpt2", tiny_tokenizer(special_tokens=False)))


def test_probes_are_shown_with_chance_and_variant_and_what_cannot_be_asked_with_its_reason(run, folder, monkeypatch):
    Path("some.txt").write_text("The cat sat on the old table.\n\nShe said no.\n", encoding="utf-8")
    here = ("roles", "--model", folder, "--corpus", "some.txt")
    unlike = {name: probing.Probe(name, "it is \x1b[31mlazy") for name in ("copying",)}
    asked = cache(probing.ask_probes)  # once for all three
    lm = mh.load(folder)
    monkeypatch.setattr("manyheads.roles.probes.ask_probes", lambda *_: {**asked(lm), **unlike})
    ran = run(*here, "--probes")
    assert "labels rest on natural text" in next(line for line in ran.lines if line.startswith("Probes"))
    line = next(line for line in ran.lines if line.startswith("  random repeats  "))
    assert line.split()[2][:2] in ("L0", "L1") and line.split()[6] == "800" and "ARENA" in ran.out
    assert "copying                     not asked: it is" in ran.out and "\x1b" not in ran.out
    assert "no head was counted: a needle in texts of 128 tokens" in ran.out
    assert "probing: 32 texts" in ran.err or not ran.err  # a quick step says nothing
    ranked = run(*here, "--probes", "--ask", "random repeats", "--ask", "copying", "--top", "5")
    assert ranked.lines[0] == probing.PROBES["random repeats"] and len(ranked.lines[2:7]) == 5
    assert ranked.lines[2].split()[:4] == line.split()[2:6] and "not asked" in ranked.out
    assert_refused(run(*here, "--ask", "copying"), "is a probe, which was not run: give probes=True (--probes)")
    complete = run(*here, "--probes", "--all", "--top", "5").lines
    begin = complete.index(probing.PROBES["random repeats"])
    assert complete[begin : begin + 7] == ranked.lines[:7]
    data = json.loads(run(*here, "--probes", "--json").out)
    assert [(each["name"], each["asked"], len(each["heads"])) for each in data["probes"]][2:4] == [
        ("random repeats, offset -1", True, 8), ("copying", False, 0),
    ]  # fmt: skip


def test_a_corpus_of_unknown_ending_or_that_cannot_be_read_is_named_once_with_the_option(run):
    Path("junk.bin").write_bytes(b"x")
    assert_refused(run("roles", "--corpus", "junk.bin"), "Say --kind (text, jsonl, conllu)")
    Path("empty").mkdir()
    assert_refused(run("roles", "--corpus", "empty", "--kind", "jsonl"), "holds no file of --kind jsonl to read")
    Path("bad.conllu").write_text("1\tfoo\n\n2\tbar\tx\n\n")
    ran = run("roles", "--corpus", "bad.conllu", "--model", "/nowhere")
    assert_refused(
        ran, "bad.conllu:1 cannot be read", "the 2 texts", "token 1 has 2 columns", "Correct the file", "--kind"
    )
    assert ran.err.count("bad.conllu") == 1


# ---------------------------------------------------------------------------------------------- everything, on a page


class Html(HTMLParser):
    """A page's elements, and the lines of its text as a reader sees them; refuses what is not closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.title, self.text = [], [], "", ""
        self.feed(page)
        self.close()
        assert not self.open
        self.lines = self.text.splitlines()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.title += data * (self.open[-1:] == ["title"])
        self.text += data * ("pre" in self.open)


def report_of(roles, path):
    write_report(roles, page(roles, "my <texts>", ModelChoice("minilm"), [], complete=True), path)
    return Html(path.read_text(encoding="utf-8"))


def share(value):
    return f"{100 * min(value, 1):.0f}%"


def test_every_claim_of_the_table_is_in_the_report_with_its_figures_and_why_it_does_not_hold(tmp_path):
    found = roles_of(elsewhere=0.123)
    lines, seen = report_of(found, tmp_path / "page.html").lines, 0
    for role, question in found.questions.items():
        begin = next(i for i, line in enumerate(lines) if line == question and lines[i + 1].startswith("  head "))
        block = lines[begin + 2 : lines.index("", begin)]
        claims = [claim for claim in found.ranked(role) if claim.num_queries]
        rows = [index for index, line in enumerate(block) if line.startswith("  L")]
        assert [block[index].split()[0] for index in rows] == [str(claim.head) for claim in claims]
        for index, claim in zip(rows, claims, strict=True):
            figures = block[index].replace("*", " ").split()
            wanted = [share(claim.score), share(claim.given), share(claim.chance), f"{claim.num_queries:,}"]
            wanted += [share(value) for value in claim.baselines.values() if value == max(claim.baselines.values())]
            assert set(wanted) <= set(figures) and figures[-2:] == ["elsewhere", "12%"], (role, figures)
            reasons = [] if claim.holds else [f"does not hold: {'; '.join(failing(claim))}"]
            assert [line.strip() for line in block[index + 1 : index + 1 + len(reasons)]] == reasons
            seen += 1
    assert seen == sum(bool(claim.num_queries) for claims in found.claims for claim in claims) > 200
    notes = lines[lines.index("What this rests on") :]
    assert any(line.startswith("  rules: Attention: enough of all, or 60%") for line in notes)
    assert "    page.txt:7: TextError: <nothing> there" in notes
    assert "  labels: attention is not effect: ..." in notes and f"  {seen:,} claims were tried;" in "\n".join(notes)


def test_the_report_has_each_heads_evidence_what_else_holds_and_every_example(tmp_path):
    found = roles_of(1, 2, RULES, holds=True)
    broad = label_of(claim_of(RULES[0], found[0].head), "broad")
    labels = (replace(broad, evidence=replace(broad.evidence, statistic="entropy")), found[1])
    second = found.of_head(found[1].head)[-1]
    examples = {
        (found[0].head, "broad"): (Example("page.txt:3", "The cat sat.", 3.456, ("sat → cat 0.61", "cat → The 0.22")),),
        (found[1].head, second.role): tuple(Example(f"text {i}", f"A text, {i}.", 0.75, ()) for i in range(3)),
    }
    found = replace(found, labels=labels, examples=examples)
    lines = report_of(found, tmp_path / "page.html").lines
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith("By head: ")) + 1 :]
    assert lines[0] == f"  L0H0    broad: {broad.evidence.words}"
    claims = [claim for claim in found.of_head("L0H0") if claim.role != "broad"]
    also = ", ".join(f"{claim.role} ({share(claim.tested)})" for claim in claims)
    assert lines[1].strip() == f"also holds: {also}"
    assert lines[2].strip() == "broad, 3.46 nats in page.txt:3: “The cat sat.”"
    assert lines[3].strip() == "sat → cat 0.61; cat → The 0.22"
    assert lines[4] == f"  L0H1    {found[1].name}: {found[1].evidence.words}"
    shown = [line.strip() for line in lines[: lines.index("")] if second.role in line]
    assert shown[-3:] == [f"{second.role}, 75.0% in text {i}: “A text, {i}.”" for i in range(3)]


def test_the_report_is_named_after_model_and_texts_and_fetches_and_runs_nothing(tmp_path):
    found = roles_of()
    got = report_of(found, tmp_path / "a.html")
    assert got.title == got.lines[0] == "tiny <b>&amp;</b>: what each head does over my <texts>"
    tags = {tag for tag, _ in got.elements}
    assert {"svg", "pre", "title"} <= tags and not tags & {"script", "img", "iframe", "object", "a", "b", "image"}
    names = {name.rpartition(":")[2]: value or "" for _, attrs in got.elements for name, value in attrs.items()}
    assert not any(name.startswith("on") for name in names) and not names.keys() & {"src", "srcset"}
    links = [attrs[name] for _, attrs in got.elements for name in ("href", "xlink:href") if name in attrs]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    (policy,) = (attrs["content"] for _, attrs in got.elements if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ") and "script" not in policy
    report_of(found, tmp_path / "b.html")
    assert (tmp_path / "b.html").read_text(encoding="utf-8") == text


def test_any_text_is_shown_in_the_report_as_it_is(tmp_path):
    found = roles_of(1, 1, RULES[:1])
    role = label_of(claim_of(RULES[0]))
    examples = tuple(Example(text, text, 0.5, (f"{text} → {text} 0.30",)) for text in HOSTILE)
    got = report_of(replace(found, labels=(role,), examples={(role.head, role.name): examples}), tmp_path / "a.html")
    assert not {tag for tag, _ in got.elements} & {"script", "b"}
    printable = [text for text in HOSTILE if text.strip() and text.isprintable()]
    assert len(printable) > 15
    for text in printable:
        assert f": “{text}”" in got.text and f"{text} → {text} 0.30" in got.text
    assert "a b c" in got.text and "��[31m" in got.text and "\x1b" not in got.text


def test_the_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    found = roles_of(1, 1, RULES[:1])
    refuses(FileAccessError, "its folder does not exist", report_of, found, tmp_path / "none" / "page.html")
    (tmp_path / "old.html").write_text("old")
    monkeypatch.setattr("manyheads.figures.save_roles", lambda _, path: path.write_text("<svg></svg>"))
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    refuses(FileAccessError, "the disk is full", report_of, found, tmp_path / "old.html")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("old.html", "old")]


def test_the_report_is_what_all_prints(run, folder):
    Path("some.txt").write_text("The cat sat on the old table.\n\nShe said no.\n", encoding="utf-8")
    ran = run("roles", "--model", folder, "--corpus", "some.txt", "--all", "--top", "2", "--report", "page.html")
    assert ran.code == 0 and ran.lines[-1] == "wrote page.html"
    got = Html(Path("page.html").read_text(encoding="utf-8"))
    assert got.lines == ran.lines[:-1]
    assert got.title == ran.lines[0] and len(run("roles", "--model", folder, "--corpus", "some.txt").lines) < 40


def test_merged_parts_print_every_ranking_of_the_whole_with_all(run, folder):
    Path("some.txt").write_text("\n".join(page_texts()[:8]), encoding="utf-8")
    here = ("roles", "--model", folder, "--corpus", "some.txt", "--lines")
    for index in range(2):
        assert run(*here, "--shard", f"{index}/2", "--out", f"part-{index}.sums").code == 0
    assert_refused(run(*here, "--shard", "0/2", "--out", "x.sums", "--all"), "--all is about all texts")
    whole, merged = run(*here, "--all").lines, run("merge", "part-0.sums", "part-1.sums", "--all").lines
    begins = [lines.index("Which head looks at the token before?") for lines in (whole, merged)]
    ends = [lines.index("What this rests on") for lines in (whole, merged)]
    assert whole[begins[0] : ends[0]] == merged[begins[1] : ends[1]] and ends[0] - begins[0] > 100
    assert "Which head looks at the token before?" not in run("merge", "part-0.sums", "part-1.sums").lines
