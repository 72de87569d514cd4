"""An HTTP service over a trained model: micro-batches, limits, a page and metrics."""

from medic.deploy.service.limits import Limits

__all__ = ["Limits"]
