"""The page asks nobody anything, says every figure as its claim has it and why it does not hold, and shows any text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from manyheads.errors import FileAccessError
from manyheads.figures import UNLABELLED, write_report
from manyheads.figures.roles.report import POLICY, TOP, interval, page_of, q_words
from manyheads.figures.roles.words import percent
from manyheads.roles import RULES, failing
from manyheads.roles.results import Example
from manyheads.roles.rules import LOCAL_RULE, POSITIONAL, syntax_rules
from tests.figures.pictures import HOSTILE
from tests.figures.test_roles import ASKED, EXAMPLE, claim_of, label_of, roles_of

VOID = {"meta", "link"}


class Page(HTMLParser):
    """Elements with what they hold, as a reader would; refuses what is not closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.rows, self.elements = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", **{name: value or "" for name, value in attrs}}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        element = self.open.pop()
        assert element["tag"] == tag, (element, tag)

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, kind=""):
        return [
            each for each in self.elements if each["tag"] == tag and (not kind or kind in each.get("class", "").split())
        ]


@pytest.fixture(scope="module")
def roles():
    found = roles_of(elsewhere=0.123)
    role = found.labels[4]
    examples = {
        (role.head, role.name): (EXAMPLE, Example("second <name>", "A <script>alert(1)</script> text.", 0.5, ()))
    }
    return replace(found, examples=examples)


@pytest.fixture(scope="module")
def page(roles):
    return Page(page_of(roles))


def rows_of(page):
    """Question -> its rows, each a row's class and the texts of its cells."""
    out, role, row = {}, "", None
    for element in page.elements:
        if element.get("class") == "asked":
            role = element["text"]
        elif element["tag"] == "tr":
            row = (element.get("class"), []) if element.get("class") in ("holds", "weak") else None
            if row is not None:
                out.setdefault(role, []).append(row)
        elif row is not None and element["tag"] in ("td", "th"):
            row[1].append(element["text"])
    return out


def test_every_figure_of_the_three_best_heads_is_in_the_page(page, roles):
    shown = rows_of(page)
    assert len(shown) == len(ASKED)
    for rule in ASKED:
        ((_, rows),) = [
            (asked, rows) for asked, rows in shown.items() if asked.startswith(f"{rule.asks}{rule.role}holds")
        ]
        claims = roles.ranked(rule.role, TOP)
        assert len(rows) == len(claims) == TOP
        for (kind, cells), claim in zip(rows, claims, strict=True):
            assert kind == ("holds" if claim.holds else "weak")
            figures = " ".join(cells)
            values = [claim.score, claim.given, claim.chance, claim.elsewhere, *claim.baselines.values()]
            values += [value for name, value in claim.beyond.items()] + [claim.norm] * (claim.norm is not None)
            for value in values:
                assert percent(value) in figures, (rule.role, value)
            assert cells[0] == str(claim.head) and interval(claim.low, claim.high) in cells
            assert f"{claim.num_queries:,}" in cells and q_words(claim.q_value) in cells


def test_what_holds_says_yes_and_what_does_not_says_why(page, roles):
    words = {(asked, cells[0]): cells[-1] for asked, rows in rows_of(page).items() for _, cells in rows}
    labels = {role.head: role.name for role in roles}
    for (asked, head), verdict in words.items():
        (claim,) = [
            c
            for mine in roles.claims
            for c in mine
            if str(c.head) == head and asked.startswith(f"{c.asks}{c.role}holds")
        ]
        if claim.holds:
            label = labels[claim.head]
            assert verdict == ("yes, its label" if label == claim.role else f"yes; its label: {label}")
        else:
            assert verdict == f"no: {'; '.join(failing(claim))}" and len(verdict) > 8


def test_the_highest_chance_level_and_each_guess_have_their_names():
    rule = syntax_rules(["det"])[0]
    claim = {"chances": {"relabelled": 0.1, "uniform": 0.2}, "baselines": {"det.to_head.mode": 0.31}}
    found = roles_of(rules=(rule,), **claim, beyond={"det.to_head.rule": 0.42, "det.to_head.off_rule": 0.53})
    (((_, cells), *_),) = rows_of(Page(page_of(found))).values()
    assert "20.0% any word" in cells
    assert "offset +1 31.0%NOUN to the right 42.0%" in cells  # as the statistics' meanings have it
    assert "–53.0%" in cells  # where they fail: not counted, and counted


def test_a_question_names_the_heads_for_which_it_holds(page, roles):
    for element in page.all("th", "asked"):
        role = next(role for role, asks in roles.questions.items() if element["text"].startswith(f"{asks}{role}holds"))
        sure = [str(claim.head) for claim in roles.ranked(role) if claim.holds]
        assert element["text"].endswith(f"holds for {', '.join(sure) or 'no head'}")


def test_the_headline_says_model_texts_and_named_heads_and_that_attention_is_not_effect(page):
    (title,), (lead,) = page.all("h1"), page.all("p", "lead")
    assert title["text"] == "tiny <b>&amp;</b>: what its heads look at"
    assert lead["text"] == (
        "5 of 6 heads are named, on the evidence of 1,234 texts, 56,789 tokens; 321 passages, 4,567 tokens."
    )
    near_the_top, by_the_labels = page.all("p", "caveat")
    assert near_the_top["text"].startswith("Attention is not effect.")
    assert by_the_labels["text"].startswith("Attention is not effect:")


def test_each_cell_of_the_grid_has_its_word_its_evidence_and_leads_to_it(page, roles):
    cells = [each for each in page.all("td") if "title" in each]
    links = [each["href"] for each in page.all("a") if re.fullmatch(r"#h\d+", each["href"])]
    places = {each["id"] for each in page.elements if "id" in each}
    assert len(cells) == len(roles) == len(links) and {link[1:] for link in links} <= places
    for role, cell in zip(roles, cells, strict=True):
        assert cell["title"] == f"{role.head}, {role.name}: {role.evidence.words}"
        assert bool(cell["text"].strip()) == (role.name != UNLABELLED.name) == ("named" in cell.get("class", ""))
    assert all(each["href"][1:] in places for each in page.all("a"))


def test_stacks_and_wide_models_have_grids_of_their_own():
    both = [roles_of(heads=17, stack="encoder", rules=RULES), roles_of(stack="cross", rules=RULES)]
    labels = both[0].labels + both[1].labels
    page = Page(page_of(replace(both[0], labels=labels, claims=both[0].claims + both[1].claims)))
    assert [each["text"] for each in page.all("h3")][:2] == ["encoder", "cross"]
    assert [len(page.all("table", kind)) for kind in ("grid", "many")] == [2, 1]


def test_nothing_is_fetched_and_nothing_runs(page, roles):
    text = page_of(roles)
    assert not page.all("script") and not page.all("img") and not page.all("iframe") and not page.all("object")
    assert [each["href"] for each in page.all("link")] == ["data:,"]
    assert all(each["href"].startswith("#") for each in page.all("a"))
    assert not any(
        name.startswith("on") or name in ("src", "srcset", "style") for each in page.elements for name in each
    )
    assert not re.search(r"https?:|url\(|@import|javascript:|//", text)
    (policy,) = [each for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"] == POLICY and "default-src 'none'" in POLICY and "script" not in POLICY


def test_any_text_is_shown_as_it_is():
    rule = RULES[0]
    role = label_of(claim_of(rule))
    examples = tuple(Example(text, text, 0.5, (f"{text} → {text} 0.30",)) for text in HOSTILE)
    page = Page(page_of(replace(roles_of(1, 1, (rule,)), labels=(role,), examples={(role.head, role.name): examples})))
    shown = page.all("blockquote")
    gone = dict.fromkeys((0, 13, 27, 55296), "�")
    for text, each in zip(HOSTILE, shown, strict=True):
        assert each["dir"] == "auto"
        assert each["text"] == (text if len(text) <= 2_000 else f"{text[:2_000]}…").translate(gone)
    assert not page.all("script") and not page.all("b")
    links = page.all("span", "link")
    assert all(each["text"].endswith(" 0.30") for each in links)


def test_each_word_of_a_link_is_isolated():
    role = label_of(claim_of(RULES[0]))
    example = Example("here", "قط كلب", 0.5, ("كلب → قط 0.61", "odd 0.31"))
    text = page_of(replace(roles_of(1, 1, RULES[:1]), labels=(role,), examples={(role.head, role.name): (example,)}))
    assert (
        '<span class="link"><bdi>كلب</bdi> → <bdi>قط</bdi> 0.61</span><span class="link"><bdi>odd 0.31</bdi></span>'
        in text
    )


def test_examples_stand_under_their_label_with_their_score_in_its_unit(page, roles):
    figures = page.all("figure")
    assert len(figures) == 2 and "here 75.0%; page.txt:3" in figures[0]["text"]
    assert "sat → cat 0.61" in figures[0]["text"]
    assert "A <script>alert(1)</script> text." in figures[1]["text"]
    named = sum(role.name != UNLABELLED.name for role in roles)
    assert page.all("main")[0]["text"].count("No example: too few short texts ask it.") == named - 1
    broad = replace(label_of(claim_of(RULES[0]), "broad"), evidence=replace(roles[1].evidence, statistic="entropy"))
    example = Example("there", "text", 3.456, ())
    other = Page(
        page_of(replace(roles, labels=(broad,), claims=roles.claims[:1], examples={(broad.head, "broad"): (example,)}))
    )
    assert "here 3.46 nats; there" in other.all("figure")[0]["text"]


def test_the_way_it_was_found_is_told(page, roles):
    text = page.all("main")[0]["text"]
    tests = sum(bool(claim.num_queries) for mine in roles.claims for claim in mine)
    for words in (
        f"all {tests:,} tests", "5% at most are false", "<s> draws 40% of all attention.", "TextError: <nothing> there",
        "position and part of speech kept, the link destroyed", "any earlier mention, each as likely", "words shuffled",
        "Clark et al. 2019, section 4.2, as in its code", "Kobayashi et al. 2020", "….to_head.rule", "(3 relations)",
        "the same score there, over all of its texts",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("….to_head.rule") == 1
    every = {each.name for table in roles.tables for each in table.statistics if each.block is None}
    named = {each["text"] for each in page.all("th", "mono")}
    assert every <= named


def test_without_a_second_corpus_or_gold_there_are_no_columns_for_them():
    text = page_of(roles_of(rules=RULES))
    assert "second corpus" not in text and "fixed guess</th>" not in text and "Second corpus" not in text


def test_the_same_roles_give_the_same_page(tmp_path, roles):
    for name in "ab":
        write_report(roles, tmp_path / f"{name}.html")
    first, second = ((tmp_path / f"{name}.html").read_bytes() for name in "ab")
    assert first == second == page_of(roles).encode()


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch, roles):
    with pytest.raises(FileAccessError, match="cannot tell what kind of page 'roles.pdf' is: end it in .html, .htm"):
        write_report(roles, tmp_path / "roles.pdf")
    with pytest.raises(FileAccessError, match="its folder does not exist"):
        write_report(roles, tmp_path / "none" / "roles.html")
    (tmp_path / "old.html").write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(FileAccessError, match="the disk is full"):
        write_report(roles, tmp_path / "old.html")
    assert [Path(each).name for each in tmp_path.iterdir()] == ["old.html"] and (
        tmp_path / "old.html"
    ).read_text() == "old"


def test_questions_that_no_head_answers_are_folded_and_offsets_among_them_stand_last():
    rules = [*POSITIONAL, LOCAL_RULE]
    found = roles_of(rules=rules, num_queries=300, holds=False)
    kept = "next token"
    claims = tuple(tuple(replace(each, holds=each.role == kept) for each in mine) for mine in found.claims)
    text = page_of(replace(found, claims=claims))
    before, folded = text.split(f"<details><summary>{len(rules) - 1} questions that no head answers</summary>")
    assert f"<bdi>{kept}</bdi>" in before.split('id="positions"')[1] and "<details open" not in text
    asked = re.findall(r"<span><bdi>([^<]*)</bdi></span><span>holds for no head", folded)
    assert len(asked) == len(rules) - 1 and not any(name.startswith("offset") for name in asked[:3])
    assert all(name.startswith("offset") for name in asked[3:]), asked


def test_labels_say_that_effect_was_not_measured_and_masses_what_their_cases_are(page, roles):
    groups = [each["text"] for each in page.all("h3") if "effect: not measured" in each["text"]]
    assert len(groups) == len({role.name for role in roles if role.name != UNLABELLED.name})
    assert any("rows of all tokens, special ones ([CLS], [SEP])" in each["text"] for each in page.all("p", "second"))
