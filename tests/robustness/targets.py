"""Every reader of outside bytes, by name: one table for the property tests and for the fuzzer."""

from tests.robustness.file_targets import FILE_TARGETS, PLAN_FILE_TARGETS, STATE_TARGETS
from tests.robustness.head_file_targets import HEAD_FILE_TARGETS, REQUEST_TARGETS
from tests.robustness.target import Target
from tests.robustness.word_targets import CORPUS_TARGETS, WORD_TARGETS

EVERY = (
    *WORD_TARGETS, *CORPUS_TARGETS, *FILE_TARGETS, *PLAN_FILE_TARGETS, *HEAD_FILE_TARGETS, *STATE_TARGETS,
    *REQUEST_TARGETS,
)  # fmt: skip
TARGETS: dict[str, Target] = {each.name.replace(" ", "-"): each for each in EVERY}
