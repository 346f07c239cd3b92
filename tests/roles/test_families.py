"""Claims about distances between heads, and about groups and maps of what has distances.

Oracles: the model's own eager maps, in NumPy, sum p ln(p / m); brute force; and scipy.
"""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from scipy.cluster import hierarchy

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.errors import FileAccessError, HeadError, ModelError, StatisticError
from manyheads.figures import UNLABELLED, save_families
from manyheads.figures import families as figure
from manyheads.heads import Head
from manyheads.plan import Copy, Plan
from manyheads.roles import HeadRole
from manyheads.roles.compare import head_diversity, head_families
from manyheads.roles.compare import rows as sampledrows
from manyheads.roles.compare.families import (
    HeadFamilies,
    LayerDiversity,
    average_linkage,
    best_cut,
    cut,
    families_of,
    flat_map,
    medoid,
    silhouettes,
)
from manyheads.roles.compare.rows import pair_divergences, row_divergences
from manyheads.roles.words import LEGEND
from tests.figures.pictures import EVIDENCE, assert_is_file_of, words_in
from tests.interventions.surgeries import TEXTS, loaded
from tests.models.eager import draw, implementation
from tests.models.tiny import tiny_llama, tiny_tokenizer
from tests.refusals import refuses

ALL = 1_000  # rows of a text: none has so many
SAME = 2e-5  # nats: eager maps are float32, and those of large scores are coarse


def rows_that_see_two(weights):
    """[h, q, k] of all heads: rows in which every head sees at least two keys. (Weights of tiny models are never 0.)"""
    return ((weights > 0).sum(-1) > 1).all(0)


def by_hand(maps):
    """Every pair's divergences, summed over rows, and how many rows; what a row lacks to 1 is a key of its own."""
    weights = np.concatenate([m.double().numpy()[0] for m in maps])
    weights = weights[:, rows_that_see_two(weights)]
    rest = np.maximum(1 - weights.sum(-1, keepdims=True), 0)
    p = np.concatenate([weights, np.where(rest > 1e-4, rest, 0)], -1)
    out = np.zeros((len(p), len(p)))
    for i, first in enumerate(p):
        for j, second in enumerate(p):
            middle = (first + second) / 2
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = [np.where(x > 0, x * np.log(x / middle), 0).sum() for x in (first, second)]
            out[i, j] = sum(terms) / 2
    return out, p.shape[1]


def eager_maps_of(lm, text, field="attentions"):
    ids = lm.tokenizer(text, return_tensors="pt", return_token_type_ids=False)["input_ids"]
    inputs = {"input_ids": ids}
    if lm.model.config.is_encoder_decoder:
        start = torch.full((1, 1), lm.model.config.decoder_start_token_id)
        inputs["decoder_input_ids"] = torch.cat([start, ids[:, :-1]], 1)
    with implementation(lm.model, "eager"), torch.no_grad():
        return lm.model(**inputs, output_attentions=True)[field]


def assert_as_by_hand(lm, texts, field="attentions", **asked):
    found = head_families(lm, list(texts), rows=ALL, **asked)
    sums, rows = zip(*(by_hand(eager_maps_of(lm, text, field)) for text in texts), strict=True)
    assert found.num_rows == sum(rows) > 20
    want = sum(sums) / sum(rows)
    assert np.abs(found.divergences - want).max() < SAME < want.max() / 100
    assert np.abs(found.distances**2 - want).max() < SAME
    sites = {head.layer: [at for at, h in enumerate(found.heads) if h.layer == head.layer] for head in found.heads}
    for layer, members in zip(found.diversity, sites.values(), strict=True):
        pairs = want[np.ix_(members, members)][np.triu_indices(len(members), 1)]
        assert layer.num_heads == len(members) and abs(layer.value - pairs.mean() / log(2)) < SAME / log(2)
    return found


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt_oss"])
def test_divergences_and_diversity_are_those_of_the_models_own_maps(name, fresh):
    """Padded batches, causal maps, windows, softcaps, shared keys; sinks, whose mass is a key of its own."""
    found = assert_as_by_hand(loaded(name, draw(fresh)), TEXTS)
    assert np.array_equal(found.divergences, found.divergences.T) and not found.divergences.diagonal().any()
    assert found.divergences.min() >= 0 and found.divergences.max() <= log(2)
    sides = found.distances[:, :, None] <= found.distances[:, None] + found.distances[None] + 1e-9
    assert sides.all(), "roots obey the triangle inequality"


@pytest.mark.parametrize(
    ("stack", "field"),
    [("encoder", "encoder_attentions"), ("decoder", "decoder_attentions"), ("cross", "cross_attentions")],
)
def test_each_stack_of_an_encoder_decoder_is_compared_by_itself(stack, field, fresh):
    lm = loaded("t5", draw(fresh))
    found = assert_as_by_hand(lm, TEXTS, field, stack=stack)
    assert {head.stack for head in found.heads} == {stack}


def test_a_model_of_several_stacks_is_asked_for_one(fresh):
    lm = loaded("t5", 0)
    refuses(HeadError, r"several stacks, .* stack= one of 'encoder'", head_families, lm, TEXTS[0])
    refuses(HeadError, "has no stack 'vision'", head_families, lm, TEXTS[0], stack="vision")


def test_row_divergences_are_the_same_formula_and_exactly_0_for_equal_rows(fresh):
    p, q = (torch.rand(3, 5, 11, generator=fresh, dtype=torch.float64).pow(6) for _ in range(2))
    p[torch.rand(p.shape, generator=fresh) < 0.3] = 0
    q[torch.rand(q.shape, generator=fresh) < 0.3] = 0
    p, q = (x / x.sum(-1, keepdim=True) for x in (p, q))
    assert not row_divergences(p, p.clone()).any()
    got = row_divergences(p, q)
    for head in range(3):
        pairs = pair_divergences(torch.stack([p[head], q[head]]))
        assert abs(float(pairs[0, 1] - got[head].sum())) < 1e-12
    apart = torch.eye(2, dtype=torch.float64)[:, None]
    assert float(pair_divergences(apart)[0, 1]) == pytest.approx(log(2), abs=1e-15)


def test_order_is_nothing_and_a_text_given_twice_counts_twice(fresh):
    lm, few = loaded("gpt2", draw(fresh)), list(TEXTS)
    found = head_families(lm, few, rows=5)
    again = head_families(lm, few[::-1], rows=5)
    assert np.abs(found.divergences - again.divergences).max() < 1e-6
    assert [each.heads for each in found.families] == [each.heads for each in again.families]
    assert [each.value for each in again.diversity] == pytest.approx([each.value for each in found.diversity], abs=1e-6)
    first, rest = head_families(lm, few[0], rows=5), head_families(lm, few[1:], rows=5)
    twice = head_families(lm, [few[0], *few], rows=5)
    want = 2 * first.num_rows * first.divergences + rest.num_rows * rest.divergences
    assert twice.num_rows == 2 * first.num_rows + rest.num_rows
    assert np.abs(twice.divergences - want / twice.num_rows).max() < 1e-6


def test_rows_are_drawn_by_a_texts_own_words_and_said(fresh):
    lm = loaded("gpt2", draw(fresh))
    found = head_families(lm, list(TEXTS), rows=3)
    assert found.num_rows == 12 and found.because.startswith(
        "12 rows: at most 3 rows of each text (as asked), drawn by"
    )
    alone = [head_families(lm, text, rows=3).divergences for text in TEXTS]
    assert np.abs(np.mean(alone, 0) - found.divergences).max() < 1e-6, "no text's rows hang on the other texts"
    every = head_families(lm, list(TEXTS))
    assert every.num_rows == sum(len(lm.tokenizer(text)["input_ids"]) - 1 for text in TEXTS), "row 0 sees one key"
    assert "16, or more where that makes fewer than 2,048 in all" in every.because
    assert np.abs(every.divergences - found.divergences).max() > 1e-3


def test_blocks_of_rows_and_long_texts_in_windows_change_nothing(fresh, monkeypatch):
    lm = loaded("llama", draw(fresh))
    text = " ".join(TEXTS * 5)  # 235 words in 80 positions
    found = head_families(lm, text, rows=20)
    assert "read in" in found.because and "windows of 80" in found.because and found.num_texts > 2
    monkeypatch.setattr(sampledrows, "BLOCK_CELLS", 500)
    blocks = head_families(lm, text, rows=20)
    assert np.abs(found.divergences - blocks.divergences).max() < 1e-12


def test_diversity_alone_is_that_of_families_and_its_mean_over_layers(fresh):
    lm = loaded("llama", draw(fresh))
    for plan in (Plan([]), Plan(Copy("L*", "L*H0")), Plan(Copy("L1", "L1H2"))):
        with mh.applied(lm, plan):
            alone, families = head_diversity(lm, list(TEXTS)), head_families(lm, list(TEXTS))
        assert [layer.value for layer in alone.layers] == pytest.approx([layer.value for layer in families.diversity])
        assert alone.value == pytest.approx(np.mean([layer.value for layer in families.diversity]))
        assert alone.num_rows == families.num_rows and (alone.value < 1e-9) == (plan.steps[:1] == (Copy("L*", "L*H0"),))
    refuses(StatisticError, "no row that sees two keys here: there is nothing to compare", head_diversity, lm, "cat")


@pytest.mark.parametrize("step", [mh.Average("L1"), pytest.param(mh.Copy("L1", source="L1H2"), marks=pytest.mark.slow)])
def test_heads_made_the_same_have_no_diversity_and_earlier_layers_are_as_they_were(step, fresh):
    lm = loaded("gpt2", draw(fresh))
    before = head_families(lm, list(TEXTS))
    with mh.applied(lm, step):
        now = head_families(lm, list(TEXTS))
    assert now.diversity[1].value < 1e-9 < before.diversity[1].value
    assert now.diversity[0] == before.diversity[0]
    assert abs(now.diversity[2].value - before.diversity[2].value) > 1e-6
    assert "weights as the plan around it shares them in L1" in now.because and "plan" not in before.because
    assert head_families(lm, list(TEXTS)).diversity == before.diversity
    with mh.applied(lm, mh.Ablate("L1H0")):
        silenced = head_families(lm, list(TEXTS))
    assert silenced.diversity[:2] == before.diversity[:2], "what a head says is not where it looks"


def test_averaged_heads_look_where_their_mean_looks(fresh):
    lm = loaded("bert", draw(fresh))
    weights = np.stack([mh.record(lm, TEXTS[0]).layers[0].weights()[h].double().numpy() for h in range(5)])
    with mh.applied(lm, mh.Average("L0H1-3")):
        now = head_families(lm, TEXTS[0], rows=ALL)
    weights[1:4] = weights[1:4].mean(0)
    want, rows = by_hand([torch.tensor(weights)[None]])
    assert np.abs(now.divergences[:5, :5] - want / rows).max() < SAME
    assert now["L0H1", "L0H3"] < 1e-12 < now["L0H1", "L0H0"]


def test_heads_that_share_a_part_look_that_far_towards_the_source(fresh):
    """A second step begins where the first one left off."""
    lm = loaded("bert", draw(fresh))
    weights = np.stack([mh.record(lm, TEXTS[0]).layers[0].weights()[h].double().numpy() for h in range(5)])
    with mh.applied(lm, mh.Plan([mh.Copy("L0H1, L0H3", "L0H2", share=0.3), mh.Copy("L0H1, L0H4", "L0H0", 0.6)])):
        now = head_families(lm, TEXTS[0], rows=ALL)
    own = weights.copy()
    weights[3] = 0.7 * own[3] + 0.3 * own[2]
    weights[1] = 0.4 * (0.7 * own[1] + 0.3 * own[2]) + 0.6 * own[0]
    weights[4] = 0.4 * own[4] + 0.6 * own[0]
    want, rows = by_hand([torch.tensor(weights)[None]])
    assert np.abs(now.divergences[:5, :5] - want / rows).max() < SAME


def test_plans_for_single_samples_are_refused(fresh):
    lm = loaded("gpt2", 0)
    with mh.applied(lm, [mh.Plan(mh.Average("L1"))]), pytest.raises(StatisticError, match="apply one plan for all"):
        head_families(lm, TEXTS[0])


@pytest.mark.slow
def test_the_bundled_models_families_are_known(minilm):
    found = head_families(minilm, page_texts()[::20], rows=12)
    assert found.nearest("L1H1", 1)[0][0] == mh.Head("", 2, 9), "both look for the same token elsewhere"
    assert found.nearest("L2H9", 1)[0][0] == mh.Head("", 1, 1)
    assert found.family_of("L0H2").heads == (mh.Head("", 0, 2),), "the previous piece, and nothing else"
    sinks = {found.family_of(head).medoid for head in ("L4H5", "L3H4", "L2H7", "L4H2", "L3H3")}
    assert len(sinks) == 1
    assert all(0.1 < each.low < each.value < each.high < 0.5 for each in found.diversity)
    assert 0.2 < found.explained < 0.5
    with mh.applied(minilm, mh.Plan([mh.Average("L2")])):
        now = head_families(minilm, page_texts()[::20], rows=12)
    assert now.diversity[2].value < 1e-6 and now.diversity[:2] == found.diversity[:2]


def test_one_text_however_often_has_no_interval(fresh):
    lm = loaded("gpt2", draw(fresh))
    for texts in (TEXTS[0], [TEXTS[0]] * 3):
        assert all(each.low is None and each.high is None for each in head_families(lm, texts).diversity)
    several = head_families(lm, [*TEXTS, *(f"{text} and {text}" for text in TEXTS)]).diversity
    assert all(each.low <= each.value <= each.high and each.low < each.high for each in several)


def test_a_table_json_and_a_line_say_what_was_found(fresh, tmp_path):
    lm = loaded("gpt2", draw(fresh))
    found = head_families(lm, list(TEXTS), clusters=3)
    frame = found.to_pandas()
    assert len(frame) == 12 and set(frame["family"]) == {0, 1, 2} and frame["silhouette"].between(-1, 1).all()
    assert [len(family.heads) for family in found.families] == frame["family"].value_counts().tolist()
    near, apart = found.nearest("L2H1", 1)[0]
    row = frame[frame["head"] == "L2H1"].iloc[0]
    assert row["nearest"] == str(near) and row["nearest_divergence"] == apart == found["L2H1", near]
    found.save(tmp_path / "families.csv")
    assert (tmp_path / "families.csv").read_text().startswith("head,stack,layer,index,family")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["families"][0]["medoid"] in data["families"][0]["heads"] and len(data["diversity"]) == 3
    assert "12 heads in 3 families" in str(found) and "3 families, as asked" in found.because
    refuses(FileAccessError, "what kind of table", found.save, tmp_path / "families.xyz")


def test_progress_ends_at_all_tokens(fresh):
    told = []
    head_families(loaded("gpt2", 0), list(TEXTS), progress=lambda done, of: told.append((done, of)))
    assert told and told[-1][0] == told[-1][1]


@pytest.mark.parametrize(("asked", "match"), [
    ({"rows": 0}, "rows=0: give how many rows"),
    ({"rows": True}, "rows=True"),
    ({"clusters": 0}, "clusters=0: give a number of families"),
    ({"clusters": 13}, "clusters=13 families of 12 heads"),
])  # fmt: skip
def test_numbers_that_cannot_be_are_refused(asked, match):
    refuses(StatisticError, match, head_families, loaded("gpt2", 0), TEXTS[0], **asked)


def test_what_cannot_be_compared_is_said():
    refuses(ModelError, "not a loaded model", head_families, "minilm", TEXTS[0])
    one = tiny_llama(1, num_attention_heads=1, num_hidden_layers=1)
    lm = mh.load(one, tokenizer=tiny_tokenizer(special_tokens=False))
    refuses(StatisticError, "has one head here: there is nothing to compare", head_families, lm, TEXTS[0])
    refuses(StatisticError, "no row that sees two keys", head_families, loaded("gpt2", 0), "cat")
    with pytest.raises(HeadError, match="there is no head L7H0 here: L0H0 to L2H3"):
        head_families(loaded("gpt2", 0), TEXTS[0]).nearest("L7H0")


def distances_of(points):
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def naive(distances, count):
    """Merge the two groups of the least mean distance until `count` are left."""
    groups = [[at] for at in range(len(distances))]
    while len(groups) > count:
        pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
        i, j = min(pairs, key=lambda pair: distances[np.ix_(groups[pair[0]], groups[pair[1]])].mean())
        groups[j] += groups.pop(i)
    return {frozenset(group) for group in groups}


def as_sets(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


@pytest.mark.parametrize("num", [2, 3, 7, 23])
def test_linkage_is_brute_forces_at_every_number_of_groups(num, rng):
    distances = distances_of(rng.normal(size=(num, 4)))
    merges = average_linkage(distances)
    heights = [height for _, _, height in merges]
    assert len(merges) == num - 1 and heights == sorted(heights)
    for count in range(1, num + 1):
        assert as_sets(cut(merges, count)) == naive(distances, count)


def test_linkage_is_scipys_and_things_that_are_the_same_come_together_first(rng):
    distances = distances_of(rng.normal(size=(150, 6)))
    merges = average_linkage(distances)
    tree = hierarchy.linkage(distances[np.triu_indices(150, 1)], "average")
    assert np.abs(tree[:, 2] - [height for _, _, height in merges]).max() < 1e-12
    for count in (2, 9, 40):
        assert as_sets(cut(merges, count)) == as_sets(hierarchy.fcluster(tree, count, "maxclust"))
    points = rng.normal(size=(4, 3))[[0, 1, 0, 2, 1, 3, 0]]
    assert as_sets(cut(average_linkage(distances_of(points)), 4)) == {
        frozenset({0, 2, 6}), frozenset({1, 4}), frozenset({3}), frozenset({5})
    }  # fmt: skip


def test_silhouettes_are_the_definitions(rng):
    distances, groups = distances_of(rng.normal(size=(17, 3))), np.repeat([0, 1, 2, 3], [8, 5, 3, 1])
    want = []
    for at, group in enumerate(groups):
        own = [distances[at, other] for other in range(17) if groups[other] == group and other != at]
        others = [distances[at, groups == other].mean() for other in range(4) if other != group]
        want.append((min(others) - np.mean(own)) / max(min(others), np.mean(own)) if own else 0)
    assert np.abs(silhouettes(distances, groups) - want).max() < 1e-12
    assert not silhouettes(distances, np.zeros(17, dtype=np.int64)).any(), "one group is next to nothing"


@pytest.mark.parametrize("sizes", [(6, 6), (8, 4), (5, 4, 3), (9, 2, 2, 2)])
def test_planted_groups_are_found_with_their_number(sizes, rng):
    centres = 10 * rng.permutation(np.eye(len(sizes), 5))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    distances = distances_of(centres[groups] + rng.normal(scale=0.3, size=(len(groups), 5)))
    merges = average_linkage(distances)
    count, tried = best_cut(distances, merges)
    assert count == len(sizes) and as_sets(cut(merges, count)) == as_sets(groups)
    assert tried[count] == max(tried.values()) and min(tried) == 2


def test_one_odd_thing_is_not_a_family_and_too_few_are_groups_of_their_own(rng):
    # Alone by far, so that setting it apart has the best silhouette; the two groups are what there is to tell.
    groups = np.repeat([0, 1, 2], [6, 5, 1])
    centres = np.array([[0.0, 0], [3, 0], [0, 90]])
    distances = distances_of(centres[groups] + rng.normal(scale=0.1, size=(12, 2)))
    merges = average_linkage(distances)
    count, tried = best_cut(distances, merges)
    assert tried[2] > tried[3] and count == 3 and as_sets(cut(merges, 3)) == as_sets(groups)
    distances = distances_of(np.array([[0.0], [1.0]]))
    assert best_cut(distances, average_linkage(distances)) == (2, {})


def test_a_medoid_is_nearest_to_its_group(rng):
    points = rng.normal(size=(9, 2))
    members = np.array([1, 3, 4, 8])
    inside = distances_of(points)[np.ix_(members, members)].sum(0)
    assert medoid(distances_of(points), members) == members[inside.argmin()]


def test_a_map_of_points_in_the_plane_is_the_plane_and_says_how_much_it_shows(rng):
    points = rng.normal(size=(20, 2)) * [3, 1]
    places, explained = flat_map(distances_of(points) ** 2)
    assert np.abs(distances_of(places) - distances_of(points)).max() < 1e-9 and explained > 1 - 1e-12
    order = rng.permutation(20)
    again, _ = flat_map(distances_of(points[order]) ** 2)
    assert np.abs(again - places[order]).max() < 1e-9, "a place hangs on distances, not on the order or on luck"
    points = rng.normal(size=(400, 3)) * [4, 2, 1]
    _, explained = flat_map(distances_of(points) ** 2)
    centred = points - points.mean(0)
    values = np.linalg.eigvalsh(centred.T @ centred)
    assert explained == pytest.approx(values[1:].sum() / values.sum())
    places, explained = flat_map(np.zeros((3, 3)))
    assert not places.any() and explained == 1


# ================================================================================================= the map of all heads
# The map of all heads: every head has a dot, names do not run into each other, and what is left out is said.


def found_of(fresh, layers=3, heads=4, clusters=None, spread=1.0):
    """Families of heads whose squared distances are those of some points."""
    random = np.random.default_rng(fresh.initial_seed())
    named = tuple(Head("", layer, index) for layer in range(layers) for index in range(heads))
    points = random.normal(scale=spread, size=(len(named), 4))
    apart = np.square(points[:, None] - points[None]).sum(-1)
    divergences = 0.69 * apart / max(apart.max(), 1e-12)
    families, tried, why = families_of(named, divergences, clusters)
    places, explained = flat_map(divergences)
    diversity = tuple(LayerDiversity(f"L{at}", heads, 0.3, 0.28, 0.33) for at in range(layers - 1))
    diversity = (*diversity, LayerDiversity(f"L{layers - 1}", 1, None, None, None))
    return HeadFamilies(
        "a model", named, divergences, families, places, explained, diversity, tried, 9, 99, f"99 rows: some; {why}"
    )


@pytest.mark.parametrize("kind", [".png", ".svg", ".pdf"])
def test_a_map_is_a_real_file_of_its_kind(kind, fresh, tmp_path):
    path = tmp_path / f"map{kind}"
    save_families(found_of(fresh), path)
    assert_is_file_of(kind, path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def dots_in(path):
    """The colours of the map's dots, which are drawn above everything else."""
    root = ET.parse(path).getroot()
    styles = [each.get("style", "") for each in root.iter() if each.tag.endswith("}path")]
    return [style.split("fill: ")[1][:7] for style in styles if f"stroke: {figure.PAPER.lower()}" in style]


def test_every_head_has_a_dot_and_a_name_or_is_counted_among_those_left_out(fresh, tmp_path):
    for layers, heads in ((2, 3), (6, 12)):
        found = found_of(fresh, layers, heads)
        save_families(found, tmp_path / "map.svg")
        words, names = words_in(tmp_path / "map.svg"), {str(head) for head in found.heads}
        assert len(dots_in(tmp_path / "map.svg")) == len(names)
        missing = len(names) - sum(word in names for word in words)
        said = [word for word in words if "left out for want of room" in word]
        assert (f" {missing} name" in said[0]) if missing else not said
        assert {str(family.medoid) for family in found.families if len(family.heads) > 2} <= set(words)
        assert "0.30" in words and "one head" in words and any("of all squared distances" in word for word in words)


def test_names_do_not_run_into_dots_or_each_other_nor_off_the_map(fresh):
    found = found_of(fresh, 6, 12)
    places, medoid = figure._placed(found.map), found.families[0].medoid
    names = figure._names(places, found.heads, {medoid})
    dots = [(x - figure.DOT, y - figure.DOT, x + figure.DOT, y + figure.DOT) for x, y in places.tolist()]
    assert len(names) > 40 and medoid in names
    for head, (left, top, right, bottom) in names.items():
        others = [box for other, box in names.items() if other != head]
        # A typical head is always named, in a crowd over dots.
        boxes = others if head == medoid else [*others, *dots]
        assert all(right <= x or left >= r or bottom <= y or top >= b for x, y, r, b in boxes)
        assert left > 0 and right < figure.WIDTH - figure.PANEL and top > figure.TOP - 20
        assert bottom < figure.TOP + figure.SIDE + 20


def test_heads_of_a_family_share_a_colour_and_what_is_alone_is_grey(fresh, tmp_path):
    found = found_of(fresh, 3, 4, clusters=5)
    save_families(found, tmp_path / "map.svg")
    colours, legend = figure._by_family(found)
    assert dots_in(tmp_path / "map.svg") == [colour.lower() for colour in colours]
    for group, family in enumerate(found.families):
        here = {colour for colour, of in zip(colours, found.groups, strict=True) if of == group}
        assert len(here) == 1 and (here == {figure.ALONE}) == (len(family.heads) == 1)
    assert sum(count for _, _, count in legend) == 12


def test_roles_colour_heads_where_they_are_given(fresh, tmp_path):
    found = found_of(fresh)
    names = ["previous token", "sink [CLS]", "offset -3", "something new"]
    roles = [HeadRole(head, names[at % 4], EVIDENCE) for at, head in enumerate(found.heads)]
    save_families(found, tmp_path / "map.svg", roles=roles, title="By role")
    words = words_in(tmp_path / "map.svg")
    assert "By role" in words and {"previous token", "sink", "offset", "unlabelled"} <= set(words)
    assert dots_in(tmp_path / "map.svg").count(UNLABELLED.colour.lower()) == 3
    refuses(HeadError, "no role is given for L2H3", save_families, found, tmp_path / "map.svg", roles=roles[:-1])


def test_labels_are_coloured_as_the_table_names_them_and_families_are_rings(fresh, tmp_path):
    """Heads of syntax and reference were grey once; a family is a ring around its dots, in the legend too."""
    found = found_of(fresh, 3, 4, clusters=5)
    up, pronoun = replace(EVIDENCE, statistic="det.to_governor"), replace(EVIDENCE, statistic="pronoun")
    told = [("det: dependent to governor", up), ("pronoun to antecedent", pronoun), ("unlabelled", EVIDENCE)]
    roles = [HeadRole(head, *told[at % 3]) for at, head in enumerate(found.heads)]
    save_families(found, tmp_path / "map.svg", roles=roles)
    words, dots = words_in(tmp_path / "map.svg"), dots_in(tmp_path / "map.svg")
    assert {"syntax", "reference", "unlabelled", "Ring: its family"} <= set(words)
    for style in LEGEND:
        assert dots.count(style.colour.lower()) == (4 if style.name in ("syntax", "reference", "unlabelled") else 0)
    _, legend = figure._by_family(found)
    text = (tmp_path / "map.svg").read_text()
    assert {said for _, said, _ in legend} <= set(words) and any(word.startswith("Bold: ") for word in words)
    for colour, _, count in legend:
        drawn = text.count(f'style="fill: {colour.lower()}"') + text.count(f"style='fill: {colour.lower()}'")
        assert drawn == 1 + (count if colour != figure.ALONE else 0), colour  # once in the legend


def test_more_families_than_hues_and_heads_that_are_all_the_same_can_be_drawn(fresh, tmp_path):
    save_families(found_of(fresh, 6, 12, clusters=30), tmp_path / "many.svg")
    assert any("more families" in word for word in words_in(tmp_path / "many.svg"))
    save_families(found_of(fresh, spread=0.0), tmp_path / "one.png")


def test_an_ending_that_is_no_figure_is_refused_before_the_work(fresh, tmp_path):
    refuses(FileAccessError, "what kind of figure", save_families, found_of(fresh), tmp_path / "map.txt")
