"""The configuration of a run: from what a user writes to every value that determines the result."""
