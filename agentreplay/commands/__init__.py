"""The commands, each with its options: they parse, call one function, and print."""
