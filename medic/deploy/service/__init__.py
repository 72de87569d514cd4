"""HTTP service for a trained model, with micro-batching, limits, a web page and metrics."""

from medic.deploy.service.limits import Limits

__all__ = ["Limits"]
