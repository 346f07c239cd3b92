"""The colours of figures: paper, ink, and one ramp between them. No matplotlib: commands read them too.

Maps are drawn in one ramp from paper to ink whose steps are even to the eye (equal steps of lightness in OKLab), so
that no band stands out that the numbers do not have. Its light end is a shade darker than the paper: a weight of 0 is
something, and where nothing is visible there is bare paper. The colours of roles are in `roles.words.role_table`.

Source: Ottosson 2020 (OKLab).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from manyheads.roles.words import NO_ROLE

UNLABELLED = NO_ROLE
"""The look of a head without a role, under the name that this package offers it by."""

PAPER = "#FCFBF8"
FADED = "#5C5F66"  # second voice of text: 6 to 1 against paper
HAIRLINE = "#D6D2C7"

RAMP_STEPS = 256
RAMP_LIGHTNESS = (0.935, 0.175)
RAMP_TINTS = ((0.002, 0.012), (-0.028, -0.070), (0.002, -0.035))  # OKLab a and b: warm paper, blue middle, blue-black
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


def ramp(steps: int = RAMP_STEPS) -> Float[ndarray, "step rgb"]:
    """Paper to ink in steps of equal lightness, sRGB from 0 to 1; tints run along a Bezier curve in OKLab's a and b."""
    t = np.linspace(0, 1, steps)[:, None]
    start, middle, end = (np.array(tint) for tint in RAMP_TINTS)
    tints = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
    light, dark = RAMP_LIGHTNESS
    lab = np.concatenate([light + t * (dark - light), tints], axis=1)
    # from OKLab to sRGB through the responses of the eye's long, middle and short cones
    linear = ((lab @ LAB_TO_CONES.T) ** 3 @ CONES_TO_RGB.T).clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def inked(shares: Float[ndarray, "*shape"]) -> UInt8[ndarray, "*shape rgba"]:
    """Each share, 0 to 1, in the ramp's colour; NaN is transparent, so that paper shows."""
    # NaN becomes 0 here only to be an index; its alpha below makes it paper
    steps = (np.nan_to_num(shares, nan=0.0).clip(0, 1) * (RAMP_STEPS - 1)).round().astype(np.intp)
    colours = (ramp() * 255).round().astype(np.uint8)[steps]
    opaque = np.where(np.isnan(shares), 0, 255).astype(np.uint8)
    return np.concatenate([colours, opaque[..., None]], axis=-1)
