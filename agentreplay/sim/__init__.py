"""The simulated server: a model of an engine, behind HTTP and in virtual time."""
