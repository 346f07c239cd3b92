"""Exit codes of the command: 0 done, 1 our fault, 2 your input, 130 Ctrl-C, 143 told to end by the system."""

OK, FAULT, ASKED_WRONG, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
