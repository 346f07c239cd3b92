"""The statistics themselves, one file a group: what each asks of the pass, and how it finishes."""
