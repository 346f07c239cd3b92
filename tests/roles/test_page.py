"""Labels are remembered under everything that they hang on."""

import manyheads as mh
from manyheads.roles import labels as page
from manyheads.statistics.corpus_run import chunks as inputs
from tests.models.tiny import tiny_bert, tiny_tokenizer


def test_other_code_of_any_package_that_measures_is_another_place_to_remember_labels(monkeypatch):
    lm, sources = mh.load(tiny_bert(), tokenizer=tiny_tokenizer()), inputs.SOURCES
    assert {"nn", "models", "recording", "statistics", "roles"} <= set(sources)
    places = {page._key(lm)}
    for package in sources:
        monkeypatch.setattr(inputs, "SOURCES", tuple(each for each in sources if each != package))
        places.add(page._key(lm))
    assert len(places) == 1 + len(sources)


def test_the_digest_of_our_code_sees_every_file_of_a_package_and_of_its_folders(tmp_path, monkeypatch):
    for package in inputs.SOURCES:
        (tmp_path / package / "inner").mkdir(parents=True)
    deep = tmp_path / inputs.SOURCES[-1] / "inner" / "rule.py"
    monkeypatch.setattr(inputs, "files", lambda package: tmp_path)
    digests = [inputs.code_digest()]
    for source in ("threshold = 3\n", "threshold = 5\n"):
        deep.write_text(source, encoding="utf-8")
        digests.append(inputs.code_digest())
    (deep.parent / "notes.txt").write_text("not code", encoding="utf-8")
    assert len(set(digests)) == 3 and inputs.code_digest() == digests[-1]
