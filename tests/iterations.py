"""What an iteration of a trainer draws and trains on, seen through its public parts."""

from unittest.mock import patch

from medic.tasks import Step
from medic.training import Trainer
from medic.training.iteration import Iteration


def trained_on(trainer: Trainer) -> list[Step]:
    """Run one iteration and return its steps, with their images as the network gets them."""
    steps, load = [], Iteration.load

    def kept(self, batch):
        loaded, probe = load(self, batch)
        steps.extend(loaded)
        return loaded, probe

    with patch.object(Iteration, "load", kept):
        trainer.step()
    return steps


def record_draws(trainer: Trainer, repeat: bool = False) -> list:
    """Return a list that grows by the tasks of every iteration; with `repeat` the first tasks are drawn again."""
    drawn, draw = [], trainer.grid.draw

    def recorded(*arguments, **settings):
        drawn.append(drawn[0] if repeat and drawn else draw(*arguments, **settings))
        return drawn[-1]

    trainer.grid.draw = recorded
    return drawn
