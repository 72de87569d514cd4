"""Evaluation: from the outputs of a model to metrics, decisions and the selected weights."""
