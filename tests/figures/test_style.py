"""The palette keeps its promises: even steps of ink, roles told apart by every kind of eye, terminals legible."""

import itertools
from pathlib import Path

import numpy as np

from manyheads.figures import UNLABELLED, ramp
from manyheads.figures.palette import FADED, HAIRLINE, PAPER, inked
from manyheads.roles import RULES
from manyheads.roles.words import LEGEND, role_style
from manyheads.roles.words.role_table import INK, ROLES, group_of, page_table

SEEN_AS = {  # Machado, Oliveira and Fernandes 2009, severity 1: what linear RGB looks like without one kind of cone
    "with all cones": np.eye(3),
    "without long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without middle": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "without short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
DARK_PAPER = "#15171b"  # web/src/app.css
TOLD_APART = 0.065  # distance in OKLab: three times what is just seen between two patches side by side


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255 if isinstance(colour, str) else colour
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def oklab(light):
    cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.cbrt(np.clip(light, 0, 1) @ np.transpose(cones)) @ np.transpose(lab)


def contrast(one, other):
    """WCAG 2."""
    low, high = sorted(linear(each) @ [0.2126, 0.7152, 0.0722] + 0.05 for each in (one, other))
    return high / low


def test_the_ramp_goes_from_paper_to_ink_in_even_steps_and_zero_differs_from_paper():
    lightness = oklab(linear(ramp(33)))[:, 0]
    steps = np.diff(lightness)
    assert (steps < 0).all() and steps.std() < 0.02 * abs(steps.mean())
    assert lightness[0] > 0.9 and lightness[-1] < 0.2
    colours = inked(np.array([0.0, 1.0, np.nan]))
    assert np.linalg.norm(oklab(linear(colours[0, :3] / 255)) - oklab(linear(PAPER))) > 0.04
    assert colours[:, 3].tolist() == [255, 255, 0]


def near(colours):
    """Pairs of these colours, by name, that some kind of eye cannot tell apart."""
    light, names = np.array([linear(colour) for colour in colours.values()]), list(colours)
    seen = [oklab(light @ np.transpose(eyes)) for eyes in SEEN_AS.values()]
    return {
        (names[a], names[b]): kind
        for kind, lab in zip(SEEN_AS, seen, strict=True)
        for a, b in itertools.combinations(range(len(names)), 2)
        if np.linalg.norm(lab[a] - lab[b]) < TOLD_APART
    }


def free_colours(count=5):
    """Colours that a new role may take: farthest from all that a figure shows, and legible on both papers."""
    steps = (*range(0, 256, 17),)
    candidates = [f"#{r:02X}{g:02X}{b:02X}" for r, g, b in itertools.product(steps, steps, steps)]
    candidates = [c for c in candidates if contrast(c, PAPER) > 2 and contrast(c, DARK_PAPER) > 2]
    light, taken = (np.array([linear(c) for c in cs]) for cs in (candidates, [s.colour for s in LEGEND]))
    seen = [(oklab(light @ np.transpose(eyes)), oklab(taken @ np.transpose(eyes))) for eyes in SEEN_AS.values()]
    distances = np.min([np.linalg.norm(one[:, None] - other, axis=-1).min(1) for one, other in seen], axis=0)
    return [candidates[i] for i in np.argsort(-distances)[:count] if distances[i] >= TOLD_APART]


def test_roles_are_told_apart_by_every_kind_of_eye_and_so_is_each_colour_that_is_free():
    colours = {style.name: style.colour for style in LEGEND}
    assert set(ROLES) < set(LEGEND) and UNLABELLED in LEGEND
    free = free_colours()
    assert not near(colours), f"too near each other: {near(colours)}; free, of which take one: {free}"
    assert free, "no colour is left for another role: move some of those in role_table.py apart"
    for colour in free:
        assert not near({**colours, "another role": colour}), colour


def test_each_role_has_its_own_hue_and_words_and_each_group_its_letter():
    for kind in ("name", "colour", "short", "tiny", "terminal"):
        assert len({getattr(style, kind) for style in ROLES}) == len(ROLES)
    leads = [style for style in ROLES if style.words]
    assert [style.group for style in leads] == list(dict.fromkeys(style.group for style in leads))
    assert {style.group for style in ROLES} == {style.group for style in leads}
    assert len({style.letter for style in leads}) == len(leads) and all(style.letter for style in leads)


def test_the_page_has_the_librarys_table_of_roles():
    path = Path(__file__).parents[2] / "web/src/lib/draw/roles.generated.ts"
    assert path.read_text(encoding="utf-8") == page_table(), "run `make web`"


def test_terminal_colours_are_of_the_256_and_legible_on_black_and_on_white():
    cube = [0, 95, 135, 175, 215, 255]
    known = {f"#{r:02x}{g:02x}{b:02x}" for r in cube for g in cube for b in cube}
    known |= {f"#{8 + 10 * i:02x}" + f"{8 + 10 * i:02x}" * 2 for i in range(24)}
    for style in (*ROLES, UNLABELLED):
        assert style.terminal in known, style
        assert min(contrast(style.terminal, "#000000"), contrast(style.terminal, "#ffffff")) >= 3, style


def test_words_are_legible_on_paper_and_groups_on_the_pages_dark_one():
    assert contrast(INK, PAPER) > 12 and contrast(FADED, PAPER) > 4.5
    assert all(contrast(style.colour, PAPER) > 2 for style in ROLES) and contrast(HAIRLINE, PAPER) > 1.3
    assert all(contrast(style.colour, DARK_PAPER) > 2 for style in (*ROLES, UNLABELLED) if style.words)
    own_hues = {style.colour for style in LEGEND if style.name in ("syntax", "reference")}
    assert len(own_hues) == 2 and all(contrast(colour, PAPER) > 3 for colour in own_hues)


def test_every_role_that_a_rule_gives_has_its_style_and_is_in_the_group_of_its_row():
    names = {rule.role: role_style(rule.role).name for rule in RULES}
    assert all(role == name or (name == "offset" and role.startswith("offset ")) for role, name in names.items())
    assert role_style("sink [CLS] and [SEP]").name == "sink" and role_style("broad").name == "broad"
    assert role_style("unlabelled") is role_style("something of yours") is role_style("selfish") is UNLABELLED
    assert group_of("offset -3") == "local" and group_of("sink [CLS] and [SEP]") == "sink"
    assert group_of("rare tokens") == "content" and group_of("unlabelled") == "unlabelled"
    assert group_of("det: dependent to governor") == "det: dependent to governor"  # no row: a group of its own
