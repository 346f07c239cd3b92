"""The sweep: every architecture that transformers knows, built tiny, recorded, and held against its own attention.

`architectures` finds them, `shrink` makes tiny configs, `inputs` feeds them, `build` makes them sharp, `oracle` takes
the model's own maps, `judge` compares, `work` keeps each in a process of its own, `report` writes docs/models.md.
`make models` runs all of it; `python -m tests.sweep NAME ...` a few, and writes nothing.
"""
