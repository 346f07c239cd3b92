"""Prints the table of statistics as Markdown: `python -m manyheads.statistics`, for docs/reference/statistics.md."""

from manyheads.statistics.table import table_markdown

if __name__ == "__main__":
    print(table_markdown())
