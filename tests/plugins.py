"""A method of one's own, as the text of a file outside of the package, and registries that forget it."""

from collections.abc import Iterator
from contextlib import contextmanager

from medic.config import imports
from medic.data import BENCHMARK_GROUP
from medic.methods import METHOD_GROUP
from medic.openset.registry import SCORE_GROUP

CALM = '''"""A penalty, a method that uses it, and a score."""
from dataclasses import dataclass

import medic
from medic.utils.parts import hyperparameter
from medic.objectives import Penalty


@dataclass(eq=False)
class Confidence(Penalty, name="confidence"):
    """The mean squared softmax, times a weight."""

    weight: float = hyperparameter(0.1)

    def forward(self, tasks, output, step):
        return self.weight * output.logits.softmax(1).square().sum(1).mean()


calm = medic.METHODS["calm"] = medic.Method(
    "calm", "less confident predictions", "objective: a penalty", "my notes", preset={"penalty": "confidence"}
)
half = medic.openset.SCORES["half"] = medic.openset.Score(
    "half", lambda output: medic.openset.max_logit(output) / 2, "half of the largest logit"
)
'''


@contextmanager
def forgotten() -> Iterator[None]:
    """Forget afterwards what plug-ins have registered, as a new process would."""
    groups = (METHOD_GROUP, BENCHMARK_GROUP, SCORE_GROUP)
    kept = [
        *imports._REGISTRIES.values(),
        *(group.sources for group in groups),
        imports._executed,
        imports._owners,
        imports._local,
    ]
    before = [dict(registry) for registry in kept]
    try:
        yield
    finally:
        for registry, entries in zip(kept, before, strict=True):
            registry.clear()
            registry.update(entries)
