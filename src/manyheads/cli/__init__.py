"""The command: one thin file a command; parse, call one library function, show."""

# The exit codes, in the order in which `main` describes them. They stand where nothing else is imported, since `main`
# returns them when typer and rich are missing.
OK, FAULT, ASKED_WRONG, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
