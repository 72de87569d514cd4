"""Settings of a run that is over at once."""

SHORT = {"target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 2, "device": "cpu", "quiet": True}
