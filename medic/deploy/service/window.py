"""Compare a service's most recent images with held-out source images."""

from medic.deploy.predictor import Predictor
from medic.openset import Shift
from medic.openset.shift import FEWEST
from medic.utils.outputs import Output

RECENT = 200
"""Number of recent images that are compared."""


class Window:
    """The outputs for the most recent images. One thread adds outputs, and any thread may read them."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._recent: Output | None = None
        self._assessed: tuple[Output, Shift] | None = None

    def add(self, output: Output) -> None:
        """Add the outputs for new images, and drop the oldest."""
        if self._predictor.held_out.reference is not None:
            joined = output if self._recent is None else Output.cat([self._recent, output])
            self._recent = joined.map(lambda rows: rows[-RECENT:])

    def assess(self) -> Shift | None:
        """Compare recent images with held-out images. Return None for too few images or a model without a reference."""
        recent, assessed = self._recent, self._assessed
        if recent is None or len(recent.logits) < FEWEST:
            return None
        if assessed is None or assessed[0] is not recent:  # new images have arrived
            assessed = self._assessed = recent, self._predictor.watch(recent)
        return assessed[1]
