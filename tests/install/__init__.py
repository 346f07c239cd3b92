"""The package as others get it: built, installed into fresh environments, run from an empty folder.

`environments` builds and opens archives, makes environments and runs commands in them, `claims` says what must hold in
each. The tests share heavy packages with the environment that they run in, and need no network; `make test-install`
(`python -m tests.install`) lets pip install everything again, for every Python that it finds.
"""
