"""`manyheads look`: the page, the document and the files say what the library says, and the studio shows it too.

It reads a text, stdin or a file; bad input is one plain line.
"""

import io
import json
import os
import random
import re
import shutil
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.cli.arguments import ModelChoice, Source
from manyheads.cli.look.ask_word import BAR
from manyheads.cli.look.command import LookResult, beginning_of, finding_lines
from manyheads.cli.terminal.console import stdout_console
from manyheads.corpora import OWN_TEXT
from manyheads.errors import TextError
from manyheads.heads import Head
from manyheads.inputs import read
from manyheads.models.loading.bundled import find_bundled
from manyheads.roles import label_page
from manyheads.roles.words import column_figures
from manyheads.roles.words.role_table import letter_of
from manyheads.spec import Site
from manyheads.statistics import DEFAULT, STATISTICS
from tests.cli.conftest import TEXT, assert_refused, raising

SENTENCE = "The animal didn't cross the street because it was too tired."


def rows_of(lines):
    """The table's rows: head -> line."""
    return {line.split()[0]: line for line in lines if line[:1] == "L" and "H" in line[:4]}


@pytest.fixture
def labels(minilm):
    return label_page(minilm)


@pytest.fixture
def long_text():
    return " ".join(f"{word} {index}" for index in range(260) for word in ("the cat", "sat"))


# ---------------------------------------------------------------------------------------------------------- the page


def test_with_all_the_page_has_the_evidence_and_a_row_for_each_head(run, labels):
    ran = run("look", TEXT, "--all")
    assert ran.code == 0
    rows = rows_of(ran.lines)
    assert list(rows) == [str(role.head) for role in labels.roles] and len(rows) == 72
    assert "previous token" in rows["L0H2"] and "sink [CLS]" in rows["L4H5"]
    for role in labels.roles:
        assert role.name in rows[str(role.head)]
    assert max(map(len, ran.lines)) <= 100 and all(line == line.rstrip() for line in ran.lines)


def test_a_column_of_the_table_has_one_unit_and_one_number_of_decimals(run, minilm, labels):
    rows = rows_of(run("look", TEXT, "--all").lines)
    # Where too few texts hold a role's cases there is a dash in place of the interval.
    whole = [re.sub(r"(?<=\s)–(?=\s)", "0.0–0.0%", line[27:].replace("│", " ")) for line in rows.values()]
    cells = [re.findall(r"\d+(?:\.\d+)?%?", line) for line in whole]
    for column, shape in enumerate(
        (r"\d+\.\d%", r"\d+\.\d%", r"\d+\.\d", r"\d+\.\d%", r"\d+\.\d%", r"\d\.\d\d", r"\d+\.\d")
    ):
        assert [row[column] for row in cells if not re.fullmatch(shape, row[column])] == []
    # A broad head's score is its entropy as a share of an even spread's, there and on your text.
    broad = next(role for role in labels.roles if role.name == "broad")
    table = mh.measure(minilm, TEXT, ["entropy", "entropy.uniform"])
    here = table[str(broad.head), "entropy"] / table[str(broad.head), "entropy.uniform"]
    score, chance, *_, yours = cells[list(rows).index(str(broad.head))][:5]
    assert (score, chance) == (f"{broad.evidence.score / broad.evidence.chance:.1%}", "100.0%")
    assert yours == f"{here:.1%}"
    # No interval of a share of the evenest goes past it, on however few texts the labels rest.
    assert all(role.evidence.high <= role.evidence.chance for role in labels.roles if role.name == "broad")
    assert max(float(part) for line in whole for part in re.findall(r"\d+\.\d(?=%)", line)) <= 100


@pytest.mark.parametrize(
    ("values", "unit", "written"),
    [
        ([3.0, 0.126], "nats", ["3.00", "0.13"]),
        ([123.456, 9.87, float("nan")], "keys", ["123.5", "9.9", "–"]),
        ([1.25, -0.01], "tokens", ["1.2", "0.0"]),
        ([0.5, 0.0], "share", ["50.0%", "0.0%"]),
    ],
)
def test_numbers_of_a_column_have_as_many_decimals(values, unit, written):
    assert column_figures(values, unit) == written


def test_labels_that_could_not_be_kept_are_said_with_the_reason(run, labels, monkeypatch):
    why = "measured now, and not remembered: cannot write /sealed: it is on a read-only file system"
    monkeypatch.setattr(
        "manyheads.cli.look.command.label_heads", lambda talk, lm, remember: replace(labels, because=why)
    )
    assert f"roles    {why}" in run("look", TEXT).out


def test_the_summary_says_what_it_rests_on(run, labels):
    said = " ".join(run("look", TEXT, "--all").out.split())
    for part in (
        "minilm · 6 layers x 12 heads · 22.7 million parameters",
        f'"{TEXT}" · 14 tokens',
        f"rest on {labels.num_texts} bundled texts, {labels.num_tokens:,} tokens; shipped with manyheads, measured",
        "the higher of the two (broad: 100 %, an even spread, the most that can be)",
        "weights exact: the model's own fused kernel returned the lse (torch's CPU kernel)",
        "What the 72 heads do",
        "[CLS] draws",
        "found, not assumed",
        "Attention is not effect",
        "loaded BertModel, which its config.json names",
        "seconds: ",
    ):
        assert part in said, part
    for name in {role.name for role in labels.roles} - {"unlabelled"}:
        best = max((r for r in labels.roles if r.name == name), key=lambda r: r.evidence.score)
        assert f"{name} {best.head} {best.evidence.words}" in said


def test_the_rows_hold_the_library_s_numbers(run, minilm, labels):
    rows = rows_of(run("look", TEXT, "--all").lines)
    table = mh.measure(minilm, TEXT, [*DEFAULT, "previous_mass"], sinks=labels.sinks)
    found = next(role.evidence for role in labels.roles if str(role.head) == "L0H2")
    page, yours = rows["L0H2"].split("│")
    assert page.split() == [
        "L0H2", "previous", "token", f"{found.score:.1%}", f"{found.chance:.1%}",
        f"{100 * found.low:.1f}–{found.high:.1%}",
    ]  # fmt: skip
    assert yours.split() == [
        f"{table['L0H2', 'previous_mass']:.1%}", f"{table['L0H2', 'entropy']:.2f}",
        f"{table['L0H2', 'distance']:.1f}", f"{table['L0H2', 'sink_mass']:.1%}",
        f"{table['L0H2', 'duplicate_mass']:.1%}",
    ]  # fmt: skip


def test_the_first_screen_is_the_finding_a_sentence_and_what_to_type_next(run, minilm, labels):
    lines = run("look", SENTENCE).lines
    assert len(lines) <= 40 and max(map(len, lines)) <= 100 and all(line == line.rstrip() for line in lines)
    letters = {str(role.head): letter_of(role.name) for role in labels.roles}
    for layer in range(6):
        cells = next(line for line in lines if line.startswith(f"L{layer} ")).split()[1:13]
        assert cells == [letters[f"L{layer}H{index}"] for index in range(12)]
    page = "\n".join(lines)
    for name in {role.name for role in labels.roles} - {"unlabelled", "broad"}:
        best = max((r for r in labels.roles if r.name == name), key=lambda r: r.evidence.score)
        count = sum(role.name == name for role in labels.roles)
        assert re.search(
            rf"{count}  {letter_of(name)}  {re.escape(name)} +{best.head} +{best.evidence.score:.0%} ", page
        )
    link = mh.record(minilm, SENTENCE).heads_linking("it", "animal")[0]
    assert (
        f'In your text, L3H1 looks from "it" to "animal" with {link.weight:.0%} of its attention (6% by chance).'
        in page
    )
    arc, ends, words = next(
        lines[place : place + 3] for place, line in enumerate(lines) if "L3H1 68%" in line and "╭" in line
    )
    assert words.strip() == SENTENCE
    for column, word in ((ends.index("▼"), "animal"), (ends.index("│"), "it")):
        assert words.index(f" {word}") < column <= words.index(f" {word}") + len(word)
    assert (arc.index("╭"), arc.index("╮")) == (ends.index("▼"), ends.index("│"))
    assert f'manyheads look "{SENTENCE}" --from it \\\n      --to animal' in page
    assert f'manyheads head L3H1 "{SENTENCE}"' in page and f'manyheads look "{SENTENCE}" --all' in page
    assert re.fullmatch(r"16 tokens · roles shipped · weights exact, error at most \S+ · \S+ seconds", lines[-1])


def test_a_text_needs_no_quotes(run):
    ran = run("look", "The", "cat", "sat")
    assert ran.code == 0 and 'manyheads look "The cat sat" --all' in ran.out
    assert json.loads(run("look", "The", "cat", "sat", "--json").out)["text"]["text"] == "The cat sat"


@pytest.mark.parametrize(
    ("layers", "heads", "kv_heads", "rows", "most"),
    [(4, 8, 8, 4, 17), (12, 12, 12, 12, 18), (32, 32, 32, 16, 28), (80, 64, 64, 16, 28), (30, 9, 3, 10, 21),
     (30, 9, 1, 10, 21), (32, 32, 8, 16, 28), (28, 16, 8, 14, 28)],
)  # fmt: skip
def test_other_shapes_fit_or_what_has_no_room_is_said(labels, unchecked_types, layers, heads, kv_heads, rows, most):
    names = [Head("", layer, index) for layer in range(layers) for index in range(heads)]
    roles = tuple(replace(labels.roles[place % 72], head=head) for place, head in enumerate(names))
    sites = [Site("", layer, f"{layer}", heads, kv_heads, 8, 8, True) for layer in range(layers)]
    everything = (replace(labels, roles=roles), SimpleNamespace(heads=names), (), (), {})
    lm = SimpleNamespace(spec=SimpleNamespace(sites=sites))
    looked = LookResult(lm, ModelChoice("any"), Source("", "", ""), *everything)
    lines = [line.plain for line in finding_lines(looked, stdout_console())]
    assert max(map(len, lines)) <= 100 and len(lines) <= most
    shown = [line for line in lines if re.match(r"L\d+ ", line)]
    assert len(shown) == rows
    for row, line in enumerate(shown):
        letters = "".join(re.sub(r"L\d+ ", "", line).split())
        places = [layer * heads + index for layer in range(row, layers, rows) for index in range(heads)]
        expected = "".join(letter_of(roles[place].name) for place in places)
        assert letters.startswith(expected if layers < 80 else expected[:heads])
    refused = "No room here for L16 and the layers after it: --all lists every head, --plot draws all."
    remarks = " ".join(lines)
    assert (refused in remarks) == (layers == 80)
    # Heads that share a key/value head stand together: a gap before the next group, said once.
    shared = f"{heads // kv_heads} query heads share one key/value head."
    assert (f"{'Between gaps ' if kv_heads > 1 else 'none. '}{shared}" in remarks) == (kv_heads < heads)
    if (layers, kv_heads) == (30, 3):
        groups = [len(part.split()) for part in re.split(" {2,}", re.sub(r"L\d+ +", "  ", shown[0]).strip())]
        assert groups == [3] * 9


def test_without_a_text_a_sentence_of_our_own_is_read_and_said(run):
    ran = run("look")
    assert ran.code == 0 and "an example sentence" in ran.out and OWN_TEXT[:20] in ran.out


def test_a_statistic_asked_for_by_name_is_a_column(run, minilm, labels):
    lines = run("look", TEXT, "--statistics", "heaviest_key, max_weight").lines
    heading = next(line for line in lines if line.startswith("head "))
    assert heading.split("│")[1].split() == ["score", "heaviest_key", "max_weight"]
    table = mh.measure(minilm, TEXT, ["heaviest_key"], sinks=labels.sinks)
    assert f" {table['L2H9', 'heaviest_key']:.1%} " in rows_of(lines)["L2H9"]
    assert any(line.startswith("max_weight") and "confidence" in line for line in lines), "it is explained"


def test_what_cannot_be_counted_is_a_dash_not_a_number(run):
    rows = rows_of(run("look", "cat", "--all").lines)
    assert all(row.endswith("–") for row in rows.values()), "no token recurs"


def test_a_narrow_terminal_loses_columns_not_lines(run, monkeypatch):
    monkeypatch.setattr("manyheads.cli.terminal.console.WIDTH", 80)
    lines = run("look", TEXT, "--all").lines
    assert max(map(len, lines)) <= 80
    rows = rows_of(lines)
    assert len(rows) == 72 and len({row.index("│") for row in rows.values()}) == 1
    assert "No room here for" in "\n".join(lines) and "repeat" in "\n".join(lines)
    assert not [line for line in lines if line.endswith("…") and line[:1] == "L"]


def test_a_model_that_cannot_read_the_page_gets_numbers_without_labels(run, monkeypatch):
    monkeypatch.setattr("manyheads.roles.label_page", raising(TextError("too long for it.")))
    ran = run("look", TEXT, "--all")
    assert ran.code == 0 and len(rows_of(ran.lines)) == 72
    assert "none: this model cannot read the bundled texts: too long for it." in ran.out
    heads = json.loads(run("look", TEXT, "--json").out)["heads"]
    assert {head["role"] for head in heads} == {None} and heads[0]["text"]["entropy"] > 0


@pytest.mark.slow
def test_labels_are_measured_anew_with_no_cache(run, labels):
    assert "shipped with manyheads" in run("look", TEXT, "--all").out
    assert "roles    rest on 100 bundled texts" in (ran := run("look", TEXT, "--no-cache", "--all")).out
    assert "; measured now\n" in ran.out


@pytest.mark.parametrize("family", ["bert_folder", "gpt2_folder"])
def test_a_model_in_a_folder(run, request, family):
    folder = request.getfixturevalue(family)
    ran = run("look", "the cat sat on the mat", "--model", folder, "--all")
    sizes = {"bert_folder": (2, 5), "gpt2_folder": (3, 4)}[family]
    assert ran.code == 0 and len(rows_of(ran.lines)) == sizes[0] * sizes[1]
    assert f"--model {folder}" in ran.out and f"{sizes[0]} layers x {sizes[1]} heads" in ran.out


# ---------------------------------------------------------------------------------------------------- data and files


def test_json_is_one_document_with_the_library_s_numbers(run, minilm, labels):
    ran = run("look", TEXT, "--json")
    document = json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    table = mh.measure(minilm, TEXT, DEFAULT, sinks=labels.sinks)
    assert len(document["heads"]) == 72
    for at, (head, role) in enumerate(zip(document["heads"], labels.roles, strict=True)):
        assert (head["head"], head["role"]) == (str(role.head), role.name)
        assert head["evidence"]["score"] == role.evidence.score and head["page"] == labels.values[str(role.head)]
        for name in DEFAULT:
            assert head["text"][name] == pytest.approx(table.column(name)[at], abs=1e-6)
    assert document["text"]["text"] == TEXT and document["model"]["num_parameters"] == 22_713_216
    assert document["page"]["sinks"] == ["[CLS]"] and document["statistics"]["entropy"]["unit"] == "nats"
    assert set(document["notes"]) >= {"backend", "guard_error", "loaded", "caveat"}


def test_a_command_to_copy_is_never_cut(run, tmp_path):
    folder = tmp_path / ("a-long-name-" * 9) / ("another-one-" * 9)
    shutil.copytree(find_bundled("tiny-code"), folder)
    page = run("look", "--model", str(folder), "name, size, mode, name, size,").out
    offers = page.partition("Try next")[2].replace(" \\\n     ", "")
    assert offers.count(f"--model {folder}") >= 3 and "…" not in offers
    assert f"--model {folder} --all\n" in offers and f"--model {folder} --from ',#5' --to mode\n" in offers


def test_a_language_models_page_says_what_comes_next_and_offers_who_looks_there(run):
    text = "def area(width, height): return width"
    ran = run("look", "--model", "tiny-code", text, "--json")
    lm = mh.load("tiny-code")
    with torch.no_grad():
        last = lm.model(**lm.required_tokenizer(text, return_tensors="pt")).logits[0, -1].double().softmax(-1)
    first = json.loads(ran.out)["next"][0]
    assert first["probability"] == pytest.approx(float(last.max()), abs=1e-6)
    assert first["token"] == lm.required_tokenizer.decode([int(last.argmax())])
    page = run("look", "--model", "tiny-code", "name, size, mode, name, size,").out
    assert re.search(r'^Next comes "mode" \d+%, ', page, re.M) and "--from ',#5' --to mode" in page
    assert json.loads(run("look", TEXT, "--json").out)["next"] == [], "minilm embeds texts and goes on with none"


def test_json_says_null_where_there_is_no_number(run):
    heads = json.loads(run("look", "cat", "--json").out)["heads"]
    assert {head["text"]["duplicate_mass"] for head in heads} == {None}


@pytest.mark.thinned(ending=("csv",))  # tests/statistics reads all three
@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_save_writes_roles_and_numbers_by_the_ending(run, minilm, labels, tmp_path, ending):
    path = tmp_path / f"t.{ending}"
    ran = run("look", TEXT, "--out", str(path), "--statistics", "entropy,duplicate_mass")
    assert ran.code == 0 and f"{path}" in ran.out.replace("\n         ", "")
    frame = getattr(pd, f"read_{ending}")(path)
    table = mh.measure(minilm, TEXT, ["entropy", "duplicate_mass"], sinks=labels.sinks)
    assert list(frame["role"]) == [role.name for role in labels.roles]
    assert np.allclose(frame["page_score"], [role.evidence.score for role in labels.roles], atol=1e-6)
    assert np.allclose(frame["entropy"], table["entropy"], atol=1e-6)
    assert list(frame.columns[-2:]) == ["entropy", "duplicate_mass"]
    assert [each.name for each in tmp_path.iterdir()] == [path.name], "no temporary file is left"


@pytest.mark.slow
def test_plot_draws_the_grid(run, tmp_path):
    assert "--plot grid.png" in run("look", TEXT, "--all").out
    ran = run("look", TEXT, "--plot", "grid.png", "--all")
    assert "Try next" in ran.out and "--plot grid.png" not in ran.out  # it was just done
    assert ran.code == 0 and "grid.png, the map of every head" in ran.out
    assert (tmp_path / "grid.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow  # the names are those of measure
def test_all_statistics_can_be_asked_for(run):
    document = json.loads(run("look", TEXT, "--json", "--statistics", "all").out)
    assert set(document["heads"][0]["text"]) == set(STATISTICS)
    said = run("look", TEXT, "--statistics", "all").out
    assert f"Shown are 4 of {len(STATISTICS)} statistics of your text: --json and --out hold all." in said


# ------------------------------------------------------------------------------------------------------- one reading


@pytest.fixture
def not_served(labels, monkeypatch):
    """No studio is served; and the labels of minilm are remembered."""
    monkeypatch.setattr("manyheads.cli.look.command.open_studio", lambda talk, desk, view: desk.close())


FILES = ("--plot", "grid.png", "--html", "page.html", "--out", "table.csv")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--json",),
        ("--all", "--statistics", "all"),
        ("--plot", "grid.png"),
        ("--html", "page.html"),
        ("--open",),
        (*FILES, "--open"),
        (*FILES, "--exact", "--json"),
        ("--from", "Grace#2"),
    ],
)
def test_a_text_is_read_once_and_twice_more_for_the_scenes_of_a_saved_page(options, run, not_served, passes):
    """A saved page holds what its first head adds to the stream, and one forward pass: no recording has either."""
    ran = run("look", TEXT, *options)
    assert ran.code == 0, ran.err
    assert passes == [(1, 14)] * (1 + 2 * ("--html" in options))


@pytest.mark.slow
def test_each_window_of_a_long_text_is_read_once_too(run, not_served, passes, minilm, long_text, tmp_path):
    (tmp_path / "long.txt").write_text(long_text)
    windows = read(minilm, long_text).pieces
    assert len(windows) > 1
    ran = run("look", "--file", "long.txt", *FILES, "--open")
    assert ran.code == 0, ran.err
    assert sum(count for count, _ in passes) == len(windows) + 2
    passes.clear()
    assert run("look", "--file", "long.txt", "--truncate", *FILES).code == 0
    assert passes == [(1, 512)] * 3


def test_the_sample_of_a_long_text_is_its_beginning_as_the_model_read_it_there(run, minilm, tmp_path):
    """Its words are numbered within the beginning, which are the first ones of the whole text, too."""
    text = " ".join([SENTENCE, "The street was closed to it, and so it slept."] * 6)
    (tmp_path / "long.txt").write_text(text)
    said = " ".join(run("look", "--file", "long.txt").out.split())
    match = re.search(r"Where your text begins, (\S+) looks from .(\S+). to .(\S+). with (\d+)% of its", said)
    assert match is not None, said
    begin = beginning_of(text)
    assert 150 < len(begin) <= 300 and begin.endswith(".") and text.startswith(begin)
    query, key = (name if "#" in name else f"{name}#1" for name in match.groups()[1:3])
    for name in (query, key):
        word, _, number = name.partition("#")
        assert begin.count(word) >= int(number)
    links = mh.record(minilm, text).heads_linking(query, key)
    assert f"{links[match[1]].weight:.0%}" == f"{match[4]}%"


# -------------------------------------------------------------------------------------------------------- long texts


def test_a_long_text_is_read_in_windows_cut_or_refused_and_that_is_said(run, long_text, tmp_path):
    (tmp_path / "long.txt").write_text(long_text)
    said = " ".join(run("look", "--file", "long.txt").out.split())
    assert "of 512, overlapping by 64" in said and "Where your text begins, L" in said
    cut = " ".join(run("look", "--file", "long.txt", "--truncate", "--all").out.split())
    assert "cut to the model's 512 positions" in cut and "512 tokens" in cut
    assert_refused(run("look", "--file", "long.txt", "--whole"), "512 positions")
    assert_refused(run("look", "x", "--whole", "--truncate"), "--truncate and --whole contradict each other")


# ---------------------------------------------------------------------------------------------------------- the studio


def test_one_page_with_every_head_is_written_and_said(run, tmp_path):
    ran = run("look", TEXT, "--html", "heads.html", "--out", "heads.csv")
    assert ran.code == 0
    said = " ".join(ran.out.split())
    assert "heads.html, a page for any browser, without a network: 72 heads on 14 tokens: every weight, exact; " in said
    html = (tmp_path / "heads.html").read_text(encoding="utf-8")
    assert "manyheads-snapshot" in html and "previous token" in html and (tmp_path / "heads.csv").is_file()
    written = json.loads(run("look", TEXT, "--html", "again.html", "--json").out)["written"]
    assert len(written) == 1 and written[0].startswith("again.html, a page")


def test_a_page_that_cannot_be_written_is_refused_before_the_model_is_loaded(run):
    assert_refused(run("look", TEXT, "--html", "heads.txt"), "--html heads.txt", "Use .html, .htm")
    assert_refused(run("look", TEXT, "--open", "--json"), "--json", "--open", "give one of them")
    assert_refused(run("look", TEXT, "--exact"), "--exact needs a page to write", "give --html page.html")
    assert_refused(run("publish", "site"), "there is nothing to publish", "--text")


def test_a_site_is_refused_before_a_model_is_loaded(run, tmp_path, monkeypatch):
    monkeypatch.setattr("manyheads.cli.studio.load_model", lambda *_: pytest.fail("a model was loaded"))
    (tmp_path / "look.txt").write_text("a file")
    assert_refused(run("publish", "site", "nope.heads"), "nope.heads")
    assert_refused(run("publish", "site", "--text", ""), "text 1 of 1 is empty")
    assert_refused(run("publish", "look.txt", "--text", TEXT), "it is a file")


def test_a_site_is_published_and_said(run, tmp_path):
    ran = run("publish", "site", "--text", TEXT, "--exact")
    assert ran.code == 0 and "Wrote site: 1 recording, " in ran.out and "python -m http.server -d site" in ran.out
    assert "every weight exact" in ran.out and (tmp_path / "site/index.html").is_file()
    (tmp_path / "site/mine.txt").write_text("kept")
    assert_refused(run("publish", "site", "--text", TEXT), "cannot write", "mine.txt", "Name a new folder")


@pytest.mark.parametrize("option", [["--html", "heads.html"], ["--open"]])
def test_without_the_studios_extra_the_page_says_how_to_get_it(run, monkeypatch, option):
    monkeypatch.setattr("manyheads.cli.look.command.find_spec", lambda name: None)
    ran = run("look", TEXT, *option)
    assert ran.code == 2 and 'pip install "manyheads[studio]"' in ran.err and option[0] in ran.err


def test_open_serves_the_studio_with_this_text_and_the_models_roles_at_hand(run, monkeypatch):
    opened = []
    monkeypatch.setattr("manyheads.cli.look.command.open_studio", lambda talk, desk, view: opened.append((desk, view)))
    ran = run("look", "a cat & a mat", "--open")
    assert ran.code == 0 and "previous token" in ran.out
    ((desk, view),) = opened
    assert view == "#/atlas?model=minilm&text=a+cat+%26+a+mat"
    info = desk.info(desk.recordings.get(desk.first))
    assert (info.written, info.model, info.model_here) == ("a cat & a mat", "minilm", True)
    assert len(desk.labels.known["minilm"].roles) == 72
    desk.close()


@pytest.mark.slow  # thousands of tokens are read
def test_open_leaves_a_text_out_of_the_address_that_stays_too_long_for_it(run, monkeypatch, tmp_path):
    opened, draw = [], random.Random(0)
    monkeypatch.setattr("manyheads.cli.look.command.open_studio", lambda talk, desk, view: opened.append((desk, view)))
    # Words at random: what repeats itself is deflated, and then short enough.
    (tmp_path / "long.txt").write_text(" ".join(f"{draw.randrange(10**6)}" for _ in range(2000)))
    assert run("look", "--file", "long.txt", "--open").code == 0
    ((desk, view),) = opened
    assert view == "" and desk.recordings.get(desk.first).num_texts > 1
    desk.close()


@pytest.mark.slow  # 7 seconds: the labels of another model are measured
def test_a_model_of_python_is_shown_python(run):
    ran = run("look", "--model", "tiny-code")
    assert ran.code == 0, ran.err
    assert "def largest(values):" in ran.out and "In an example function, L" in ran.out
    assert "bundled texts of Python, which this model reads" in " ".join(ran.out.split())
    said = run("ablate", "L3H5", "--model", "tiny-code", "--controls", "0")
    assert "texts     64 bundled texts of Python, which this model reads" in said.out


# ----------------------------------------------------------------------------------------------- what is given to read


@pytest.mark.parametrize("line", [["-"], ["--file", "-"]])
def test_stdin_is_read_where_it_is_asked_for(run, monkeypatch, line):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Été à Orsay.".encode())))
    ran = run("look", *line)
    assert ran.code == 0 and '"Été à Orsay."' in ran.out


def test_a_file_is_read_with_or_without_its_mark(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert json.loads(run("look", "--file", "a.txt", "--json").out)["text"]["text"] == TEXT


def test_what_was_probably_meant_is_said(run, tmp_path):
    (tmp_path / "novel.txt").write_text(TEXT)
    ran = run("look", "novel.txt")
    assert ran.code == 0 and "novel.txt is also a file" in ran.err and "--file novel.txt" in ran.err


def test_input_that_waits_unread_on_stdin_is_said(run, monkeypatch, tmp_path):
    (tmp_path / "given.txt").write_text(TEXT)
    with open(tmp_path / "given.txt") as given:
        monkeypatch.setattr(sys, "stdin", given)
        assert "add - to read it" in run("look").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([""], "the text is empty: give at least one word."),
        ([" \n "], "the text is empty"),
        (["L2H11", "l3h1,"], 'L2H11 l3h1, are heads, not a text: write several heads as one argument, "L2H11, l3h1".'),
        (["the cat", "--from", "cat", "--plot", "x.png"], "--plot shows all links: give one or the other."),
        (["x", "--file", "y.txt"], 'two texts were given, "x" and --file y.txt: give one of them.'),
        (["--file", "missing.txt"], "cannot read missing.txt: there is no such file. Check the spelling."),
        (["--file", "."], "cannot read .: it is a folder. Name a file in it."),
        (["\udcff"], "the text is not valid UTF-8"),
        (["x", "--statistics", "entropi"], "no statistic 'entropi': did you mean entropy"),
        (["x", "--statistics", ","], "no statistic was asked for"),
        (["x", "--out", "no/such/t.csv"], "--out no/such/t.csv: there is no folder no/such."),
        (["x", "--out", "t.xlsx"], "--out t.xlsx: cannot tell from that ending what to write. Use .parquet, .csv"),
        (["x", "--plot", "t.gif"], "--plot t.gif: cannot tell from that ending what to write. Use .png"),
        (["x", "--model", "nosuch"], "nosuch"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(run, monkeypatch, arguments, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused(run("look", *arguments), said)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices on this system")
@pytest.mark.parametrize("command", [["look"], ["ablate", "L1"], ["importance"], ["head", "L1H1"]])
def test_a_device_which_may_never_end_is_refused_before_it_is_read(run, monkeypatch, command):
    monkeypatch.setattr("manyheads.models.load", lambda name, **how: pytest.fail("loaded first"))
    assert_refused(run(*command, "--file", "/dev/zero"), "cannot read /dev/zero: it is a device, not a file. Name a")


def test_more_than_is_read_at_once_is_refused_of_files_and_of_stdin_without_end(run, monkeypatch, tmp_path):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:] = b"y" * len(buffer)
            return len(buffer)

    monkeypatch.setattr("manyheads.corpora.lines.MOST_BYTES", 1 << 20)
    (tmp_path / "long.txt").write_bytes(b"y" * (1 << 20) + b"y")
    assert_refused(
        run("look", "--file", "long.txt"), "long.txt is longer than 1 MB, the most that is read at once: give"
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert_refused(run("look", "-"), "stdin is longer than 1 MB")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_named_pipe_is_read_as_a_shell_gives_it(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(TEXT,), daemon=True)
    writer.start()
    assert json.loads(run("look", "--file", "pipe", "--json").out)["text"]["text"] == TEXT
    writer.join(10)


def test_a_file_that_is_no_text_is_refused(run, tmp_path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\x00")
    assert_refused(run("look", "--file", "image.png"), "image.png is not UTF-8 text (byte 0 is 0x89)")


def test_a_place_that_cannot_be_written_is_known_before_the_work(run, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.TemporaryFile", raising(PermissionError(13, "Permission denied")))
    monkeypatch.setattr("manyheads.models.load", lambda *_, **__: pytest.fail("loaded first"))
    assert_refused(run("look", "x", "--out", "t.csv"), "--out t.csv cannot be written: Permission denied.")
    (tmp_path / "t.png").mkdir()
    assert_refused(run("look", "x", "--plot", "t.png"), "--plot t.png is a folder: name a file in it.")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("model.safetensors", "has no weights"),
        ("tokenizer", "has no tokenizer files (tokenizer.json, or a vocabulary): save one there."),
        ("", "no config"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(run, bert_folder, tmp_path, missing, said):
    folder = tmp_path / "model"
    shutil.copytree(bert_folder, folder)
    for file in os.listdir(folder):
        if file.startswith(missing):
            (folder / file).unlink()
    assert_refused(run("look", "x", "--model", str(folder)), str(folder) if missing else "model", said)


def test_a_size_that_cannot_be_says_which_and_what_it_should_be_in_one_line(run, bert_folder, tmp_path):
    shutil.copytree(bert_folder, folder := tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": "x"}))
    ran = run("look", "x", "--model", str(folder))
    assert_refused(ran, "cannot load model as BertModel: ", "'num_hidden_layers'", "got str")
    assert not ran.err.endswith(":.\n")


def test_without_the_bundled_weights_the_line_that_brings_them_is_printed(run, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr("manyheads.models.loading.bundled.find_spec", lambda name: None)
    monkeypatch.setenv("MANYHEADS_MODELS", str(tmp_path))
    ran = run("look", "x")
    assert ran.code == 2 and ran.err.endswith(" MB): manyheads fetch minilm\n")


# ===================================================================================================== look --from --to
# `manyheads look --from --to`: the page and the document say what `Recording.heads_linking` says.


BOTH = ("--from", "it", "--to", "animal")


@pytest.fixture(scope="module")
def rec(minilm):
    return mh.record(minilm, SENTENCE)


def test_the_page_ranks_the_heads_and_draws_the_link(run, rec):
    ran = run("look", *SENTENCE.split(), *BOTH)
    assert ran.code == 0 and max(map(len, ran.lines)) <= 100 and all(line == line.rstrip() for line in ran.lines)
    first, second = links = rec.heads_linking("it", "animal")[:2]
    shares = [f"({100 * link.weight:.1f} %)" for link in (first, second)]
    assert ran.lines[0] == (
        f'minilm: "it" looks at "animal" most in L3H1 {shares[0]} and L5H11 {shares[1]}; spread evenly it is 6.3 %.'
    )
    rows = [line.split() for line in ran.lines if "█" in line]
    assert len(rows) == 10
    for row, link in zip(rows, links, strict=False):
        assert row[:3] == [str(link.head), f"{link.weight:.1%}", "█" * round(BAR * link.weight)]
    ends, words = next(ran.lines[place + 1 : place + 3] for place, line in enumerate(ran.lines) if "╭" in line)
    assert words[ends.index("▼") - 2 :].startswith("animal") and words[ends.index("│") :].startswith("it ")
    assert "One text shows what its heads do here. A role rests on many texts" in " ".join(ran.out.split())
    everything = run("look", SENTENCE, *BOTH, "--all").lines
    heads = [line.split()[0] for line in everything if line.startswith("  L") and "%" in line]
    assert heads == [str(head) for head in rec.heads_linking("it", "animal").heads]


@pytest.mark.parametrize(("option", "side", "other"), [("--from", "query", "key"), ("--to", "key", "query")])
def test_one_word_alone_groups_the_heads_by_the_other(run, rec, option, side, other):
    links = rec.heads_linking(**{side: "it"})
    ran = run("look", SENTENCE, option, "it", "--all")
    assert ran.code == 0 and max(map(len, ran.lines)) <= 100
    groups = {}
    for link in links:
        groups.setdefault(getattr(link, other), []).append(link)
    rows = {line.split()[0]: line.split() for line in ran.lines if " head" in line and line.startswith("  ")}
    for word, of_word in groups.items():
        assert rows[word][1] == str(len(of_word)) and rows[word][3] == str(of_word[0].head)
        assert rows[word][4] == f"{of_word[0].weight:.0%}"
    short = run("look", SENTENCE, option, "it")
    assert len(short.lines) <= 40 and "special tokens and marks are left out" in " ".join(short.out.split())


def test_json_and_save_hold_every_head(run, rec, tmp_path):
    document = json.loads(run("look", SENTENCE, *BOTH, "--json", "--out", "it.csv").out)
    links = rec.heads_linking("it", "animal")
    assert (document["from"], document["to"]) == ("it", "animal") and len(document["heads"]) == 72
    for row, link in zip(document["heads"], links, strict=True):
        assert (row["head"], row["weight"]) == (str(link.head), pytest.approx(link.weight, abs=1e-6))
    assert document["heads"][0]["role"] and document["text"]["text"] == SENTENCE
    assert list(pd.read_csv(tmp_path / "it.csv")["head"])[:2] == ["L3H1", "L5H11"]
    assert document["written"][0].startswith("it.csv, ")


def test_what_a_causal_model_cannot_see_is_said_and_null_in_json(run, gpt2_folder):
    line = ["look", "the cat sat on the mat", "--model", gpt2_folder]
    assert_refused(run(*line, "--from", "cat", "--to", "mat"), "no head can look from 'cat' to 'mat'", "Ask from 'mat'")
    ran = run(*line, "--from", "mat", "--to", "the#1")
    assert ran.code == 0 and "╭" in ran.out and "--from mat" in ran.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([SENTENCE, "--from", "its"], "there is no word 'its' in this text: did you mean 'it'?"),
        (["the cat saw the dog", "--to", "the"], "'the' is in this text 2 times. Say which: 'the#1' (the cat saw)"),
        ([SENTENCE, "--from", "it", "--html", "x.html"], "--html shows all links: give one or the other."),
        (["the cat sat. " * 300, "--from", "cat"], "times. Say which: 'cat#1'"),
        (
            ["one " + "the cat sat. " * 300 + "two", "--from", "one", "--to", "two"],
            "longer than the model's positions, holds both 'one' and 'two'",
        ),
        (["the cat sat. " * 300, "--from", "cats"], "there is no word 'cats' in the 3 windows in which"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_exit_2(run, line, message):
    assert_refused(run("look", *line), message)


def test_a_long_text_answers_from_the_window_that_holds_both_words(run, minilm):
    text = f"{'the cat sat. ' * 170}{SENTENCE} {'the cat sat. ' * 170}"
    windows = read(minilm, text).pieces
    ran = run("look", text, "--from", "animal", "--to", "street", "--json")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    number = int(re.search(r"This is window (\d) of the (\d)", said["notes"]["window"])[1]) - 1
    links = mh.record(minilm, text).heads_linking("animal", "street", text=number)
    assert f"of the {len(windows)} in" in said["notes"]["window"] and number in range(1, len(windows))
    assert [row["weight"] for row in said["heads"]] == pytest.approx([link.weight for link in links], abs=1e-5)


def test_in_ascii_the_arc_is_ascii(run, monkeypatch):
    monkeypatch.setattr("manyheads.cli.terminal.console.knows_blocks", lambda console: False)
    arc, ends, _ = next(
        lines[place : place + 3]
        for lines in [run("look", SENTENCE, *BOTH).lines]
        for place, line in enumerate(lines)
        if " L3H1 68% " in line
    )
    assert arc.strip().startswith("+--") and arc.endswith("--+") and ends.split() == ["v", "|"]


def test_of_a_long_sentence_what_stands_between_is_left_out(run):
    text = f"The animal, {'which was very large and very old, ' * 6}didn't move because it was tired."
    ran = run("look", text, *BOTH)
    sentence = next(line for line in ran.lines if line.strip().startswith(("The animal", "…")))
    assert ran.code == 0 and len(sentence) <= 100 and " … " in sentence and "animal" in sentence and " it " in sentence
