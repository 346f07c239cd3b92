"""Every reader of outside bytes, by name: one table for the property tests and for the fuzzer."""

from tests.robustness.corpustargets import CORPUS_TARGETS
from tests.robustness.filetargets import FILE_TARGETS
from tests.robustness.plantargets import PLAN_FILE_TARGETS
from tests.robustness.requesttargets import REQUEST_TARGETS
from tests.robustness.statetargets import STATE_TARGETS
from tests.robustness.target import Target
from tests.robustness.wordtargets import WORD_TARGETS

EVERY = (*WORD_TARGETS, *CORPUS_TARGETS, *FILE_TARGETS, *PLAN_FILE_TARGETS, *STATE_TARGETS, *REQUEST_TARGETS)
TARGETS: dict[str, Target] = {each.name.replace(" ", "-"): each for each in EVERY}
