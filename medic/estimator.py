"""A classifier with scikit-learn's conventions."""

import tempfile
from collections.abc import Sequence
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from medic.config.data import NONE
from medic.config.settings import SETTINGS, Settings, known_setting
from medic.config.sources import forget_source, name_source
from medic.data.classes import UNKNOWN_LABEL
from medic.errors import MedicError
from medic.runs.train import train

DATA = frozenset({"dataset", "root", "target", "sources", "split", "known", "unknown", "partial", "extend", "name"})
"""Settings that are not parameters, because `fit` takes the data and trains one new run."""


class OpenSetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of images that says "unknown" to classes it was not trained on.

        classifier = medic.OpenSetClassifier(method="medic++", iterations=300)
        classifier.fit(images, labels, groups=domains).predict(new_images)

    Images are an array (N, H, W, 3), or a sequence of paths, PIL images or arrays. The parameters are the settings of
    `medic train --help`, without those of the data; `get_params`, `set_params` and `clone` cover all of them. Fitted
    attributes: `classes_` (C,), `predictor_`, a `medic.Predictor`, and `run_`, the `medic.Run`, if there is an
    `output` to keep it in.
    """

    def __init__(self, **settings: Unpack[Settings]) -> None:
        self._settings: dict[str, Any] = {}
        self.set_params(**settings)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(SETTINGS.keys() - DATA)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name; None stands for a default."""
        return {name: self._settings.get(name) for name in self._get_param_names()}

    def set_params(self, **params: Any) -> Self:
        """Set some parameters; None restores a default."""
        for name, value in params.items():
            if known_setting(name) in DATA:
                raise MedicError(f"{name} is not a parameter: pass the data to fit(images, labels, groups)")
            self._settings[name] = value
        return self

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in self._settings.items() if value is not None)
        return f"OpenSetClassifier({', '.join(arguments)})"

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train on images and their classes (N,); `groups` (N,) are their domains, one for all by default.

        Some images of every class and domain are held out, to choose the threshold. Any class that is not in `y` is
        unknown.
        """
        labels = np.asarray(y)
        if labels.ndim != 1:
            raise MedicError(f"y has shape {labels.shape}: give one class per image")
        domains = np.zeros(len(labels), dtype=int) if groups is None else np.asarray(groups)
        dataset = name_source("dataset", (_images(X), labels.tolist(), domains.tolist()))
        settings = {name: value for name, value in self._settings.items() if value is not None}
        settings |= {"dataset": dataset, "target": NONE}
        try:
            with tempfile.TemporaryDirectory() as folder:
                run = train({"output": folder, **settings}, quiet=True)
                self.predictor_ = run.predictor
        finally:
            forget_source("dataset", dataset)  # which holds the images
        self.classes_: NDArray[Any] = np.unique(labels)
        if "output" in settings:
            self.run_ = run
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of every image (N,), or "unknown"."""
        self._check_fitted()
        known = {str(label): label for label in self.classes_.tolist()}
        decided = [known.get(one.label, UNKNOWN_LABEL) for one in self.predictor_.predict(_images(X))]
        return np.array(decided, dtype=None if self.classes_.dtype.kind == "U" else object)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities (N, C) of the known classes, as if no image were unknown."""
        self._check_fitted()
        order = [self.predictor_.classes.index(str(label)) for label in self.classes_.tolist()]
        probabilities: NDArray[np.float64] = self.predictor_.infer(_images(X)).logits.double().softmax(1).numpy()
        return probabilities[:, order]

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the score (N,) of every image minus the threshold: negative for unknown."""
        self._check_fitted()
        confidence: NDArray[np.float64] = self.predictor_.score(self.predictor_.infer(_images(X))).numpy()
        return confidence - self.predictor_.threshold.value

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of right decisions: the class, or "unknown" for a class that was not in training."""
        self._check_fitted()
        known, labels = set(self.classes_.tolist()), y.tolist() if isinstance(y, np.ndarray) else list(y)
        expected = [label if label in known else UNKNOWN_LABEL for label in labels]
        right = [one == other for one, other in zip(self.predict(X).tolist(), expected, strict=True)]
        return float(np.average(right, weights=sample_weight))

    def _check_fitted(self) -> None:
        if not hasattr(self, "predictor_"):
            raise NotFittedError("this OpenSetClassifier is not fitted yet: call fit(images, labels, groups)")


def _images(X: Any) -> Sequence[Any]:
    """Return the images of an array or of a sequence, one by one."""
    if isinstance(X, np.ndarray) and X.ndim == 3 and X.shape[-1] == 3:
        raise MedicError(f"X has shape {X.shape}, that of one image: give several, X[None] for one")
    return [X[position] for position in range(len(X))] if isinstance(X, np.ndarray) and X.ndim > 1 else list(X)
