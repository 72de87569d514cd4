"""Evaluation: metrics, decisions and model selection, computed from model outputs."""
