"""The map of all heads: every head has a dot, names do not run into each other, and what is left out is said."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from manyheads.errors import FileAccessError, HeadError
from manyheads.figures import UNLABELLED, save_families
from manyheads.figures import families as figure
from manyheads.heads import Head
from manyheads.roles import HeadRole
from manyheads.roles.compare.families import HeadFamilies, LayerDiversity, families_of, flat_map
from manyheads.roles.role_table import REFERENCE_STYLE, SYNTAX_STYLE
from tests.figures.pictures import EVIDENCE, assert_is_file_of, words_in


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


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", [".png", ".svg", ".pdf"])
@pytest.mark.sampled(1)
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


@pytest.mark.turns(4)
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


@pytest.mark.turns(4)
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
    with pytest.raises(HeadError, match="no role is given for L2H3"):
        save_families(found, tmp_path / "map.svg", roles=roles[:-1])


def test_labels_are_coloured_as_the_table_names_them_and_families_are_rings(fresh, tmp_path):
    """Heads of syntax and reference were grey once; a family is a ring around its dots, in the legend too."""
    found = found_of(fresh, 3, 4, clusters=5)
    up, pronoun = replace(EVIDENCE, statistic="det.to_head"), replace(EVIDENCE, statistic="pronoun")
    told = [("det: dependent to head", up), ("pronoun to antecedent", pronoun), ("unlabelled", EVIDENCE)]
    roles = [HeadRole(head, *told[at % 3]) for at, head in enumerate(found.heads)]
    save_families(found, tmp_path / "map.svg", roles=roles)
    words, dots = words_in(tmp_path / "map.svg"), dots_in(tmp_path / "map.svg")
    assert {"syntax", "reference", "unlabelled", "Ring: its family"} <= set(words)
    for style in (SYNTAX_STYLE, REFERENCE_STYLE, UNLABELLED):
        assert dots.count(style.colour.lower()) == 4
    _, legend = figure._by_family(found)
    text = (tmp_path / "map.svg").read_text()
    assert {said for _, said, _ in legend} <= set(words) and any(word.startswith("Bold: ") for word in words)
    for colour, _, count in legend:
        drawn = text.count(f'style="fill: {colour.lower()}"') + text.count(f"style='fill: {colour.lower()}'")
        assert drawn == 1 + (count if colour != figure.ALONE else 0), colour  # once in the legend


@pytest.mark.turns(4)
def test_more_families_than_hues_and_heads_that_are_all_the_same_can_be_drawn(fresh, tmp_path):
    save_families(found_of(fresh, 6, 12, clusters=30), tmp_path / "many.svg")
    assert any("more families" in word for word in words_in(tmp_path / "many.svg"))
    save_families(found_of(fresh, spread=0.0), tmp_path / "one.png")


def test_an_ending_that_is_no_figure_is_refused_before_the_work(fresh, tmp_path):
    with pytest.raises(FileAccessError, match="what kind of figure"):
        save_families(found_of(fresh), tmp_path / "map.txt")
