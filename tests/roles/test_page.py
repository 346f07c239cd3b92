"""Labels are remembered under everything that they hang on."""

import manyheads as mh
from manyheads.roles import page
from manyheads.statistics import inputs
from tests.models.tiny import tiny_bert, tiny_tokenizer


def test_other_code_of_any_package_that_measures_is_another_place_to_remember_labels(monkeypatch):
    lm, sources = mh.load(tiny_bert(), tokenizer=tiny_tokenizer()), inputs.SOURCES
    assert {"nn", "models", "recording", "statistics", "roles"} <= set(sources)
    places = {page._key(lm)}
    for package in sources:
        monkeypatch.setattr(inputs, "SOURCES", tuple(each for each in sources if each != package))
        places.add(page._key(lm))
    assert len(places) == 1 + len(sources)
