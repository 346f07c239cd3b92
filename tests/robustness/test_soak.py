"""The soak of the studio (`python -m benchmarks.soak`): what it calls flat, and a short one of the real server."""

import pytest

from benchmarks.soak import BAR_MB, judged, soak

SECONDS = [0.5 * at for at in range(1200)]  # ten minutes


@pytest.mark.parametrize(
    ("mb", "flat"),
    [
        (lambda s: 1600 + 7 * (s % 3), True),  # noise
        (lambda s: 300 + min(s, 190) * 7, True),  # what is kept is filled in the first third
        (lambda s: 1600 - s, True),
        (lambda s: 1600 + 6 / 1024 * 20 * s, False),  # 6 kB a request, 20 requests a second
        (lambda s: 1600 + 400 * (s > 300), False),
    ],
)
def test_flat_is_judged_over_the_last_two_thirds(mb, flat):
    found = judged([(second, mb(second)) for second in SECONDS])
    assert found["flat"] is flat and (found["rise_mb"] <= BAR_MB) is flat


@pytest.mark.slow
def test_no_request_fails_and_no_kind_is_left_out_in_a_short_soak():
    found = soak(0.75)
    assert not found["num_faults"] and not found["traceback"], found
    kinds = {
        "open",
        "atlas",
        "heads",
        "rows",
        "tiles",
        "table",
        "size",
        "lesson",
        "check",
        "page",
        "bad",
        "cut",
        "file",
    }
    assert kinds <= found["kinds"].keys() and found["requests"] > 200
    assert found["last_mb"] < 2500
