"""One run: its recipe, its directory, and the loop around the trainer."""
