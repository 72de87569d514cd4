"""Deployment: model files, predictions on new images, calibration, export and the HTTP service."""
