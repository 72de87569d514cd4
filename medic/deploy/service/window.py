"""Compare the most recent images of a service with held-out images of its model's sources."""

from medic.deploy.predictor import Predictor
from medic.openset import Shift
from medic.openset.shift import FEWEST
from medic.utils.outputs import Output

RECENT = 200
"""The number of images that are compared."""


class Window:
    """The outputs for the most recent images. One thread adds, and any thread may read."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._recent: Output | None = None
        self._assessed: tuple[Output, Shift] | None = None

    def add(self, output: Output) -> None:
        """Add the outputs for some images, and forget those for the oldest."""
        if self._predictor.held_out.reference is not None:
            joined = output if self._recent is None else Output.cat([self._recent, output])
            self._recent = joined.map(lambda rows: rows[-RECENT:])

    def assess(self) -> Shift | None:
        """Compare these images with held-out ones; None while they are too few, and for a model without a reference."""
        recent, assessed = self._recent, self._assessed
        if recent is None or len(recent.logits) < FEWEST:
            return None
        if assessed is None or assessed[0] is not recent:  # images have come since
            assessed = self._assessed = recent, self._predictor.watch(recent)
        return assessed[1]
