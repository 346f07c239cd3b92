"""`--engine` on the command line: what it asks for is what the library is given; one line for what cannot be."""

import sys

import pytest

import manyheads as mh
from manyheads import ray as on_ray
from manyheads.cli import arguments
from tests.cli.conftest import assert_refused

OPTIONS = [
    ("stats", "--address", "auto"),
    ("stats", "--actors", "2"),
    ("stats", "--gpus-per-actor", "1"),
    ("stats", "--every", "5"),
    ("roles", "--address", "auto"),
    ("roles", "--actors", "2"),
    ("roles", "--gpus-per-actor", "1"),
    ("roles", "--every", "5"),
    ("importance", "--address", "auto"),
    ("importance", "--actors", "2"),
    ("importance", "--gpus-per-actor", "1"),
    ("importance", "--every", "5"),
    ("patch", "--address", "auto"),
    ("patch", "--actors", "2"),
    ("patch", "--gpus-per-actor", "1"),
    ("patch", "--every", "5"),
    ("split", "--address", "auto"),
    ("split", "--actors", "2"),
    ("split", "--gpus-per-actor", "1"),
    ("split", "--every", "5"),
]


@pytest.mark.parametrize("line", OPTIONS, ids=" ".join)
def test_option_of_an_engine_without_one_is_refused_by_each_verb(line, run):
    assert_refused(run(*line), f"{line[1]} belongs to an engine, and none was chosen: add --engine ray")


def test_engine_that_is_none_and_missing_ray_are_refused_before_a_model_is_loaded(run, monkeypatch):
    monkeypatch.setattr(mh.models, "load", None)
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it fails
    assert_refused(run("stats", "--engine", "spark"), "--engine spark is unknown: use ray.")
    assert_refused(run("patch", "--engine", "ray"), 'this needs Ray: pip install "manyheads[ray]"')
    part = ("--shard", "0/2", "--out", "part.sums")
    monkeypatch.setattr(on_ray.Engine, "check", lambda self: None)
    assert_refused(run("stats", "--engine", "ray", *part), "--engine is about all texts, and --shard measures a part")


def test_address_that_does_not_answer_is_refused_before_a_model_is_loaded(run, monkeypatch):
    monkeypatch.setattr(mh.models, "load", None)
    monkeypatch.setattr(on_ray, "imported", lambda: None)
    ran = run("importance", "--engine", "ray", "--address", "127.0.0.1:9")
    assert_refused(ran, "no Ray cluster answers at 127.0.0.1:9", "is it up (ray status)")


def test_options_are_the_engines(monkeypatch):
    monkeypatch.setattr(on_ray.Engine, "check", lambda self: None)
    assert arguments.chosen_engine("ray", "auto", 3, 0.5, 7.0) == on_ray.Engine("auto", 3, 0.5, every=7.0)
    assert arguments.chosen_engine("ray", None, None, None, None) == on_ray.Engine()
    assert arguments.chosen_engine("ray", None, None, None, None, "file") == on_ray.Engine(shard_by="file")
    assert arguments.chosen_engine(None, None, None, None, None) is None
    assert arguments.ENGINES == ("ray",)


def test_importance_takes_a_folder_from_the_command_line(run, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat sat\n\na dog ran", encoding="utf-8")
    line = ("importance", "--file", "texts.txt", "--model", "minilm", "--resume", "kept", "--json")
    first = run(*line)
    assert first.code == 0, first
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["ablation"]
    assert run(*line).out == first.out
