"""Print the tables of docs/reference/sizing.md."""

from manyheads.sizing.tables import families_markdown, presets_markdown

print(presets_markdown())
print()
print(families_markdown())
