"""Which numbers stand in a lesson's text as they are. Every other one is a fact or an input, computed when it is read.

Allowed: 0 and 1; 1,000 and 1,024; a year behind a name; the number of a place ("section 3.2", "token 0", "table 3");
digits within a name ("L2H4", "GPT-2", "Llama-2 70B"); a 95 % interval; the number of a list's entry; and what stands in
`code`, as long as it is inputs or a formula and no result of one.
"""

import re

from manyheads.lessons.parameters import DIMENSIONS

PLACES = ("section", "table", "figure", "equation", "chapter", "appendix", "page", "step", "part", "row", "column",
          "token", "head", "layer", "key", "query", "place", "lesson", "question", "example", "version")  # fmt: skip
NUMBER = r"\d[\d.,]*(?<![.,])"
ALLOWED = (
    rf"\b(?:{'|'.join(PLACES)})s? {NUMBER}(?:(?:, | and | or | to ){NUMBER})*",
    r"\b(?:[A-Z][\w-]+|al\.),? (?:19|20)\d\d\b",
    r"(?<![\w.,])(?:0|1|1,000|1,024)(?![\w%]|[.,]\d)",
    r"^\s*\d+\. ",
    r"\b[A-Z][\w-]+ \d+B\b",
    r"\b95 % (?:confidence )?interval",
    r"\b[A-Za-z]\w*-?\w*\d[\w-]*",
)
UNITS = "|".join(sorted({re.escape(unit) for units in DIMENSIONS.values() for unit in units}, key=len, reverse=True))
VALUE = rf"[-+]?{NUMBER}\s*(?:{UNITS})"
INPUTS = re.compile(rf"(?:[A-Za-z_][\w ]*\s*=\s*[-+]?{NUMBER}\s*,?\s*)+")
RESULT = re.compile(rf".*\S\s*=\s*{VALUE}")


def typed_numbers(text: str) -> list[str]:
    """Every number of a text that should have been computed."""
    text = re.sub(r"\{\{.*?\}\}", " fact ", text, flags=re.DOTALL)
    text = re.sub(r"\{[a-z_]\w*\}", " input ", text)
    text = re.sub(r"^```.*?^```", " ", text, flags=re.DOTALL | re.MULTILINE)
    found = [code for code in re.findall(r"`([^`]*)`", text) if _result(" ".join(code.split()))]
    text = re.sub(r"`[^`]*`", " code ", " ".join(re.split(r"\n(?!\s*\d+\. |\n)", text)))
    for allowed in ALLOWED:
        text = re.sub(allowed, " ", text, flags=re.MULTILINE)
    return found + re.findall(r"\S*\d\S*", text)


def _result(code: str) -> bool:
    """Whether it is a number alone, or says what a formula comes to."""
    if re.fullmatch(VALUE, code):
        return True
    return RESULT.fullmatch(code) is not None and INPUTS.fullmatch(code) is None
