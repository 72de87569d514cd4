"""A scikit-learn compatible classifier."""

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
"""Settings that are not parameters, because `fit` receives the data and trains a single new run."""


class OpenSetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An image classifier that predicts "unknown" for classes it was not trained on.

        classifier = medic.OpenSetClassifier(method="medic++", iterations=300)
        classifier.fit(images, labels, groups=domains).predict(new_images)

    Images are an array of shape (N, H, W, 3), or a sequence of paths, PIL images or arrays. The parameters are the
    settings listed by `medic train --help`, except those for the data. `get_params`, `set_params` and `clone` support
    all of them.

    Attributes:
        classes_: Known classes, of shape (C,).
        predictor_: The fitted `medic.Predictor`.
        run_: The trained `medic.Run`, if the `output` parameter is set.
    """

    def __init__(self, **settings: Unpack[Settings]) -> None:
        self._settings: dict[str, Any] = {}
        self.set_params(**settings)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(SETTINGS.keys() - DATA)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name. None means the default."""
        return {name: self._settings.get(name) for name in self._get_param_names()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name. None restores the default."""
        for name, value in params.items():
            if known_setting(name) in DATA:
                raise MedicError(f"{name} is not a parameter: pass the data to fit(images, labels, groups)")
            self._settings[name] = value
        return self

    def __repr__(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in self._settings.items() if value is not None)
        return f"OpenSetClassifier({', '.join(arguments)})"

    def fit(self, X: Any, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Train on images with classes `y` of shape (N,). Classes that are not in `y` are unknown.

        Some images of each class and domain are held out to choose the threshold.

        Args:
            X: N images.
            y: Classes of shape (N,).
            groups: Domains of shape (N,) (default: a single domain).
        """
        labels = np.asarray(y)
        if labels.ndim != 1:
            raise MedicError(f"y must have one class per image, got shape {labels.shape}")
        domains = np.zeros(len(labels), dtype=int) if groups is None else np.asarray(groups)
        dataset = name_source("dataset", (_images(X), labels.tolist(), domains.tolist()))
        settings = {name: value for name, value in self._settings.items() if value is not None}
        settings |= {"dataset": dataset, "target": NONE}
        try:
            with tempfile.TemporaryDirectory() as folder:
                run = train({"output": folder, **settings}, quiet=True)
                self.predictor_ = run.predictor
        finally:
            forget_source("dataset", dataset)  # releases the images
        self.classes_: NDArray[Any] = np.unique(labels)
        if "output" in settings:
            self.run_ = run
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted class of each image, or "unknown", as an array of shape (N,)."""
        self._check_fitted()
        known = {str(label): label for label in self.classes_.tolist()}
        decided = [known.get(one.label, UNKNOWN_LABEL) for one in self.predictor_.predict(_images(X))]
        return np.array(decided, dtype=None if self.classes_.dtype.kind == "U" else object)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities of the known classes, of shape (N, C), assuming that no image is unknown."""
        self._check_fitted()
        order = [self.predictor_.classes.index(str(label)) for label in self.classes_.tolist()]
        probabilities: NDArray[np.float64] = self.predictor_.infer(_images(X)).logits.double().softmax(1).numpy()
        return probabilities[:, order]

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the score of each image minus the threshold, of shape (N,). Negative values mean unknown."""
        self._check_fitted()
        confidence: NDArray[np.float64] = self.predictor_.score(self.predictor_.infer(_images(X))).numpy()
        return confidence - self.predictor_.threshold.value

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, where "unknown" is the correct prediction for classes not seen in training."""
        self._check_fitted()
        known, labels = set(self.classes_.tolist()), y.tolist() if isinstance(y, np.ndarray) else list(y)
        expected = [label if label in known else UNKNOWN_LABEL for label in labels]
        right = [one == other for one, other in zip(self.predict(X).tolist(), expected, strict=True)]
        return float(np.average(right, weights=sample_weight))

    def _check_fitted(self) -> None:
        if not hasattr(self, "predictor_"):
            raise NotFittedError("this OpenSetClassifier is not fitted yet: call fit(images, labels, groups)")


def _images(X: Any) -> Sequence[Any]:
    """Return a list of the images in an array or a sequence."""
    if isinstance(X, np.ndarray) and X.ndim == 3 and X.shape[-1] == 3:
        raise MedicError(f"X must be an array of images, got a single image of shape {X.shape}: use X[None]")
    return [X[position] for position in range(len(X))] if isinstance(X, np.ndarray) and X.ndim > 1 else list(X)
