"""Statistics by name, one of your own in ten lines, and the table that comes back: read, saved, refused."""

import json
import os
import stat

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads as mh
from manyheads.errors import FileAccessError, HeadError, StatisticError
from manyheads.statistics import DEFAULT, STATISTICS, Statistic, class_mass, class_relabelled, class_uniform
from manyheads.statistics.table import choose
from tests.models.eager import draw, eager_maps
from tests.models.tiny import tiny_bert, tiny_llama, tiny_tokenizer
from tests.statistics.facts import written_text


@pytest.fixture
def lm(fresh):
    return mh.load(tiny_bert(seed=draw(fresh)), tokenizer=tiny_tokenizer())


@pytest.fixture
def texts(fresh):
    return [written_text(fresh, n) for n in (9, 4, 13)]


# -------------------------------------------------------------------------------------------------------------- choose


def test_default_and_all_are_what_the_table_says():
    assert tuple(each.name for each in choose("default")) == DEFAULT
    assert tuple(each.name for each in choose("all")) == tuple(STATISTICS)
    assert set(DEFAULT) < set(STATISTICS)
    assert all(STATISTICS[name].kind == "statistic" for name in DEFAULT)


def test_names_lists_and_your_own_can_be_mixed_and_each_comes_once():
    own = class_mass("mine", lambda tokens: tokens.first, "mean weight on the first", source="a test")
    got = choose(["entropy", own, "distance", "entropy"])
    assert [each.name for each in got] == ["entropy", "mine", "distance"] and got[1] is own
    assert [each.name for each in choose("entropy")] == ["entropy"]


@pytest.mark.parametrize(("offset", "name"), [("-1", "previous_mass"), ("+0", "self_mass"), ("+1", "next_mass")])
def test_offsets_that_have_a_name_are_found_by_their_number_too(offset, name):
    assert choose(f"offset_{offset}_mass") == choose(name)


def test_a_misspelt_name_is_told_the_nearest():
    with pytest.raises(StatisticError, match=r"there is no statistic 'entropie': did you mean entropy"):
        choose("entropie")
    wanted = r"^there is no statistic 'qqq'\. manyheads stats --list shows them all\.$"
    with pytest.raises(StatisticError, match=wanted):
        choose(["distance", "qqq"])
    with pytest.raises(StatisticError, match="no statistic was asked for: give 'default', 'all', or names"):
        choose([])


def test_every_statistic_says_what_it_is():
    for name, each in STATISTICS.items():
        assert each.name == name and each.unit and each.meaning and each.source
        assert each.range[0] < each.range[1]
        assert each.kind == ("chance" if "." in name else "statistic")
        if each.kind == "chance":
            plain = STATISTICS[name.split(".")[0]]
            assert (each.unit, each.range, each.asks) == (plain.unit, plain.range, plain.asks)
    assert {f"offset_{n:+d}_mass" for n in range(-8, 9) if abs(n) > 1} < set(STATISTICS)


# ------------------------------------------------------------------------------------------------------ one of your own


def test_a_statistic_of_your_own_takes_ten_lines(lm, texts):
    letters = {lm.tokenizer.tokenize(text)[0][0] for text in texts[:2]}  # some that occur, whatever the words

    def some(tokens):
        out = torch.zeros_like(tokens.real)
        for text, pieces in enumerate(tokens.pieces):
            out[text, : len(pieces)] = torch.tensor([piece[0] in letters for piece in pieces])
        return out

    mine = class_mass("letter_mass", some, "mean weight on tokens that begin with these letters", source="mine")
    table = mh.measure(lm, texts, statistics=["entropy", mine, class_uniform(mine, some), class_relabelled(mine, some)])

    num, den, even = np.zeros(10), 0, 0.0
    for text in texts:
        ids = lm.tokenizer(text, return_tensors="pt")["input_ids"]
        column = np.array([piece[0] in letters for piece in lm.tokenizer.convert_ids_to_tokens(ids[0])])
        if column.any():
            maps = np.concatenate([one[0].numpy() for one in eager_maps(lm.model, input_ids=ids)])
            num, den, even = num + maps[:, :, column].sum((1, 2)), den + len(column), even + column.sum()
    assert table.names == ("entropy", "letter_mass", "letter_mass.uniform", "letter_mass.relabelled")
    np.testing.assert_allclose(table["letter_mass"], num / den, atol=1e-5)
    np.testing.assert_allclose(table["letter_mass.uniform"], even / den, atol=1e-9)
    assert ((table["letter_mass.relabelled"] > 0) & (table["letter_mass.relabelled"] < 1)).all()


def test_a_statistic_from_scratch_asks_the_pass_and_finishes_it_itself(lm, texts):
    from manyheads.recording import Maximum

    def finish(facts):
        return facts.over_rows((facts[Maximum()] > 0.5).double())

    sharp = Statistic(
        "sharp_rows", "share", (0.0, 1.0), "mine", "rows with a key above one half", lambda _: (Maximum(),), finish
    )
    table = mh.measure(lm, texts, statistics=[sharp])
    rows = [
        np.concatenate(
            [one[0].amax(-1).numpy() for one in eager_maps(lm.model, **lm.tokenizer(text, return_tensors="pt"))]
        )
        for text in texts
    ]
    np.testing.assert_allclose(table["sharp_rows"], (np.concatenate(rows, 1) > 0.5).mean(1), atol=1e-9)


# ----------------------------------------------------------------------------------------------------------- the table


def test_a_table_is_read_by_column_by_head_and_as_a_frame(lm, texts):
    table = mh.measure(lm, texts)
    assert table.names == DEFAULT and len(table) == 10 and str(table.heads[7]) == "L1H2"
    assert table["entropy"].shape == (10,)
    assert table["L1H2", "entropy"] == table["entropy"][7] == table.column("entropy")[7]
    assert repr(table).startswith(f"HeadTable(10 heads x {len(DEFAULT)} statistics over 3 texts, ")
    frame = table.to_pandas()
    assert list(frame.columns) == ["head", "stack", "layer", "index", "module", *DEFAULT]
    row = frame.iloc[7]
    assert (row["head"], row["stack"], row["layer"], row["index"]) == ("L1H2", "", 1, 2)
    assert row["module"] == "encoder.layer.1.attention.self" and row["entropy"] == table["entropy"][7]
    assert {"model", "loaded", "rarity", "sinks", "backend", "guard_error"} <= table.notes.keys()
    assert "windows" not in table.notes  # nothing was cut


def test_asking_a_table_for_what_it_lacks_says_what_it_has(lm, texts):
    table = mh.measure(lm, texts)
    with pytest.raises(
        StatisticError, match=r"this table has no 'max_weight', only entropy, effective_keys.*by name, or 'all'"
    ):
        table.column("max_weight")
    with pytest.raises(HeadError, match="there is no head L2H0 in this table: it holds L0H0 to L1H4"):
        _ = table["L2H0", "entropy"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
@pytest.mark.sampled(1)
def test_a_saved_table_reads_back_the_same(kind, lm, texts, tmp_path):
    table = mh.measure(lm, texts, statistics="all")
    path = tmp_path / f"table.{kind}"
    table.save(path)
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": lambda p: pd.DataFrame(json.loads(p.read_text()))}[
        kind
    ](path)
    want = table.to_pandas()
    assert list(read.columns) == list(want.columns) and list(read["head"]) == list(want["head"])
    for name in table.names:
        np.testing.assert_allclose(read[name].astype(float), want[name], rtol=1e-9, atol=1e-9, equal_nan=True)
    assert stat.S_IMODE(path.stat().st_mode) & 0o044  # readable by others, as files are
    assert os.listdir(tmp_path) == [path.name]
    table.save(str(path))  # and again, over itself
    assert os.listdir(tmp_path) == [path.name]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(lm, texts, tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text("old")
    table = mh.measure(lm, texts, statistics="entropy")

    def full(self, target, **_):
        with open(target, "w") as file:
            file.write("half a ta")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(FileAccessError, match=r"cannot write .*table\.csv: the disk is full\. Free some space"):
        table.save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["table.csv"]

    def interrupted(self, target, **_):
        full_disk = open(target, "w")  # noqa: SIM115
        full_disk.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(pd.DataFrame, "to_csv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["table.csv"]


def test_a_table_says_where_it_cannot_be_written(lm, texts, tmp_path):
    table = mh.measure(lm, texts, statistics="entropy")
    with pytest.raises(
        FileAccessError, match=r"what kind of table 'table\.xlsx' is: end it in \.parquet, \.csv, \.json"
    ):
        table.save(tmp_path / "table.xlsx")
    with pytest.raises(
        FileAccessError, match=r"cannot write .*nowhere/table\.csv: its folder does not exist\. Make it first"
    ):
        table.save(tmp_path / "nowhere" / "table.csv")
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------------------- measure


def test_measure_reports_progress_in_tokens_and_ends_at_all(lm, texts):
    seen = []
    table = mh.measure(lm, texts, progress=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1] == (table.sums.num_tokens,) * 2
    assert seen == sorted(seen) and {total for _, total in seen} == {table.sums.num_tokens}


def test_measure_reads_a_long_text_in_windows_and_says_so(fresh):
    lm = mh.load(tiny_bert(seed=draw(fresh), max_position_embeddings=16), tokenizer=tiny_tokenizer())
    text = "the cat sat on the table and the dog sat on the chair in the house"
    table = mh.measure(lm, [text, "the cat"])
    assert (
        table.notes["windows"]
        == "1 of 2 texts is longer than the model's positions: read in 2 windows of 16, overlapping by 2"
    )
    assert table.sums.num_texts == 3
    assert mh.measure(lm, text, long="truncate").notes["windows"] == "the text cut to the model's 16 positions"


def test_measure_call_names_what_it_leaves_out_and_refuses_when_nothing_is_left(fresh):
    model, ids = tiny_llama(seed=draw(fresh)), torch.arange(5, 16)[None]
    table = mh.measure_call(model, input_ids=ids)
    left_out = "sink_mass, special_mass, punctuation_mass, rare_mass, duplicate_mass, induction_mass"
    assert table.notes["left out, for want of a tokenizer"] == left_out
    assert sorted([*table.names, *left_out.split(", ")]) == sorted(DEFAULT)
    with pytest.raises(StatisticError, match=r"all these statistics need a tokenizer: use measure\(lm, texts\)"):
        mh.measure_call(model, input_ids=ids, statistics=["rare_mass", "sink_mass"])


def test_a_module_that_reads_two_texts_in_one_call_has_its_layers_twice(fresh):
    class Twice(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model(input_ids), self.model(input_ids.flip(1))

    model, ids = tiny_llama(seed=draw(fresh)), torch.arange(5, 16)[None]
    both = mh.measure_call(Twice(model).eval(), ids, statistics=["entropy"])["entropy"]
    alone = [mh.measure_call(model, x, statistics=["entropy"])["entropy"] for x in (ids, ids.flip(1))]
    np.testing.assert_allclose(both, np.concatenate(alone), atol=1e-6)


def test_rarity_is_counted_in_a_large_corpus_and_is_the_vocabularys_rank_in_a_small_one(lm, texts, monkeypatch):
    few = mh.measure(lm, texts, statistics="rare_mass")
    assert "rank in the vocabulary" in few.notes["rarity"] and f"{few.sums.num_tokens:,} tokens" in few.notes["rarity"]
    monkeypatch.setattr("manyheads.models.inputs.texts.CORPUS_TOKENS", 3)
    counted = mh.measure(lm, ["the cat the cat the cat the dog the dog"], statistics="rare_mass")
    assert counted.notes["rarity"] == "counts over the corpus' 12 tokens"
    maps = eager_maps(lm.model, **lm.tokenizer("the cat the cat the cat the dog the dog", return_tensors="pt"))
    want = torch.cat([one[0][:, :, [8, 10]].sum(-1).mean(-1) for one in maps])  # "dog", the rarest word of the text
    np.testing.assert_allclose(counted["rare_mass"], want, atol=1e-5)
