"""`qk-clip`: under Muon at a high rate the largest logits grow past 1,000; QK-clip after each step keeps them at tau.

The model, data and report of `entropy-collapse`, with Muon for the matrices: at a high rate without and with
`mh.QKClip`, at the paper's tau and at a lower one, and at a rate at which nothing needs to be clipped.

Source: Kimi Team 2025, Kimi K2, section 2.1 (MuonClip: tau 100, maxima past 1,000 without it in a mid-scale training).
"""

from __future__ import annotations

from manyheads.lab.training.presets.entropy_collapse import Comparison, Way
from manyheads.lab.training.presets.preset import Preset

COMPARISON = Comparison(
    "Max logits at a high rate, without and with QK-clip",
    {
        "free": Way("Muon, rate 0.1", "Muon at rate 0.1", 0.1, "muon"),
        "clipped-100": Way(
            "Muon, rate 0.1,\nQK-clip at 100", "Muon at rate 0.1, QK-clip at 100", 0.1, "muon", qk_clip=100.0
        ),
        "clipped-30": Way(
            "Muon, rate 0.1,\nQK-clip at 30", "Muon at rate 0.1, QK-clip at 30", 0.1, "muon", qk_clip=30.0
        ),
        "lower": Way("Muon, rate 0.02", "Muon at rate 0.02", 0.02, "muon"),
    },
    "free",
)
PRESET = Preset("qk-clip", COMPARISON.build)
