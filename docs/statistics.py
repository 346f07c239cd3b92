"""The table of statistics in docs/reference/statistics.md, and the rows of `manyheads stats --list`, from the code."""

import json
from pathlib import Path

from manyheads.statistics.listing import FILE, rows
from manyheads.statistics.table import table_markdown

PAGE = Path(__file__).parent / "reference" / "statistics.md"
MARK = "<!-- made by `python docs/statistics.py`, held to it by a test -->\n"

if __name__ == "__main__":
    before, _, after = PAGE.read_text(encoding="utf-8").partition(MARK)
    _, gap, rest = after.partition("\n\n")
    PAGE.write_text(f"{before}{MARK}{table_markdown().rstrip()}{gap or chr(10)}{rest}", encoding="utf-8")
    Path(str(FILE)).write_text(json.dumps(rows(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
