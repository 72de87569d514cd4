"""One run: its plan, its directory, and the loop around the trainer."""
