"""The doctor: what is present here, which backends would run and because of what, and what is wrong."""
