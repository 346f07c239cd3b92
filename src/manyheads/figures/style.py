"""How figures look: paper, ink, one ramp between them, and a colour for each role. Plain data; no matplotlib.

Maps are drawn in one ramp from paper to ink whose steps are even to the eye (equal steps of lightness in OKLab), so
that no band stands out that the numbers do not have. Its light end is a shade darker than the paper: a weight of 0 is
something, and where nothing is visible there is bare paper. Roles have ten hues, Okabe and Ito's and kin, told apart
under the three kinds of colour blindness; sinks and heads without a role are grey. A colour never stands without its
word. Terminals take `terminal`: colours of the 256 that all of them have, legible on black and on white.

Sources: Okabe and Ito 2008 (Color Universal Design); Ottosson 2020 (OKLab).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

PAPER = "#FCFBF8"
INK = "#1B1E26"
FADED = "#5C5F66"  # second voice of text: 6 to 1 against paper
HAIRLINE = "#D6D2C7"

RAMP_STEPS = 256
RAMP_LIGHTNESS = (0.935, 0.175)
RAMP_TINTS = ((0.002, 0.012), (-0.028, -0.070), (0.002, -0.035))  # OKLab a and b: warm paper, blue middle, blue-black


@dataclass(frozen=True)
class RoleStyle:
    """How a role is shown: its colour on paper and in terminals, its name, and shorter words where room is scarce."""

    name: str
    colour: str
    terminal: str
    short: str
    tiny: str


ROLES = (
    RoleStyle("previous token", "#0072B2", "#0087d7", "previous", "prev"),
    RoleStyle("next token", "#56B4E9", "#008787", "next", "next"),
    RoleStyle("offset", "#332288", "#5f5fd7", "offset", "offs"),
    RoleStyle("self", "#00524A", "#5f8700", "self", "self"),
    RoleStyle("local", "#009E73", "#00875f", "local", "local"),
    RoleStyle("sink", "#6F6F6F", "#878787", "sink", "sink"),
    RoleStyle("duplicate token", "#D55E00", "#d75f00", "duplicate", "dupl"),
    RoleStyle("induction", "#CC79A7", "#d75f87", "induction", "ind"),
    RoleStyle("punctuation", "#E69F00", "#af8700", "punctuation", "punct"),
    RoleStyle("rare tokens", "#661100", "#af5f5f", "rare", "rare"),
    RoleStyle("broad", "#8C510A", "#af875f", "broad", "broad"),
)
UNLABELLED = RoleStyle("unlabelled", "#C9C4B8", "#767676", "unlabelled", "")


def role_style(name: str) -> RoleStyle:
    """The style of a role as `HeadRole.name` gives it: "offset -3" and "sink [CLS]" too. Unknown roles go in grey."""
    for style in ROLES:
        if name == style.name or name.startswith(f"{style.name} "):
            return style
    return UNLABELLED


def ramp(steps: int = RAMP_STEPS) -> Float[ndarray, "step rgb"]:
    """Paper to ink in steps of equal lightness, sRGB from 0 to 1; tints run along a Bezier curve in OKLab's a and b."""
    t = np.linspace(0, 1, steps)[:, None]
    start, middle, end = (np.array(tint) for tint in RAMP_TINTS)
    tints = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
    light, dark = RAMP_LIGHTNESS
    return _srgb(np.concatenate([light + t * (dark - light), tints], axis=1))


def inked(shares: Float[ndarray, "*shape"]) -> UInt8[ndarray, "*shape rgba"]:
    """Each share, 0 to 1, in the ramp's colour; NaN is transparent, so that paper shows."""
    steps = (np.nan_to_num(shares, nan=0.0).clip(0, 1) * (RAMP_STEPS - 1)).round().astype(np.intp)
    colours = (ramp() * 255).round().astype(np.uint8)[steps]
    opaque = np.where(np.isnan(shares), 0, 255).astype(np.uint8)
    return np.concatenate([colours, opaque[..., None]], axis=-1)


def _srgb(lab: Float[ndarray, "step lab"]) -> Float[ndarray, "step rgb"]:
    """OKLab to sRGB, through the responses of the eye's long, middle and short cones."""
    linear = ((lab @ LAB_TO_CONES.T) ** 3 @ CONES_TO_RGB.T).clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


LAB_TO_CONES = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
CONES_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)
