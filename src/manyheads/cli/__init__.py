"""The command: one thin file a command; parse, call one library function, show."""
