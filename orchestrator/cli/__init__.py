"""The command line: parse, call one function, turn errors into exit codes."""
