"""The exit codes of the command, in the order in which `main` describes them: 0, 1, 2, 130, 143.

Nothing is imported here, since `main` returns them when typer and rich are missing.
"""

OK, FAULT, ASKED_WRONG, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
