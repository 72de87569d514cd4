"""`OpenSetClassifier`, by scikit-learn's own tools."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import medic
from medic.config.settings import SETTINGS
from medic.errors import MedicError
from medic.models import HALVES, OURS
from tests.small import small_network

pytestmark = pytest.mark.filterwarnings("ignore:domain")

LABEL, DOMAIN = np.tile(np.arange(6), 18), np.repeat(["a", "b", "c"], 36)
IMAGES = np.random.default_rng(0).random((108, 16, 16, 3)) * 100 + 30 * LABEL[:, None, None, None]
IMAGES = IMAGES.clip(0, 255).astype(np.uint8)
QUICK = {"method": "erm", "backbone": "small", "iterations": 20, "device": "cpu", "images": 24}


@pytest.fixture(scope="module", autouse=True)
def small():
    """Register the small network of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OURS, "small", (lambda size: small_network(), HALVES))
        yield


@pytest.fixture(scope="module")
def fitted(small):
    known = LABEL < 5
    names = np.array([f"class {label}" for label in LABEL])
    return medic.OpenSetClassifier(**QUICK).fit(IMAGES[known], names[known], DOMAIN[known])


def test_it_names_images_or_calls_them_unknown(fitted):
    decided = fitted.predict(IMAGES)
    assert decided.shape == (108,)
    assert set(decided) <= {*fitted.classes_, "unknown"}
    assert list(fitted.classes_) == [f"class {number}" for number in range(5)]
    rejected = fitted.decision_function(IMAGES) < 0
    assert ((decided == "unknown") == rejected).all()
    accepted = ~rejected
    best = fitted.classes_[fitted.predict_proba(IMAGES).argmax(1)]
    assert (decided[accepted] == best[accepted]).all()
    assert fitted.predict_proba(IMAGES).sum(1) == pytest.approx(np.ones(108))


def test_score_counts_unknown_as_right_for_other_classes(fitted):
    names = np.array([f"class {label}" for label in LABEL])
    right = fitted.predict(IMAGES) == np.where(LABEL < 5, names, "unknown")
    assert fitted.score(IMAGES, names) == pytest.approx(right.mean())
    weights = np.linspace(0, 1, 108)
    assert fitted.score(IMAGES, names, weights) == pytest.approx(np.average(right, weights=weights))


def test_labels_of_mixed_types(fitted):
    names = [f"class {label}" if label < 5 else 5 for label in LABEL]
    expected = fitted.score(IMAGES, np.array(names, dtype=object))
    assert fitted.score(IMAGES, names) == expected


def test_one_image_is_no_sequence(fitted):
    with pytest.raises(MedicError, match="single image"):
        fitted.predict(IMAGES[0])


def test_numbers_stay_numbers(tmp_path):
    classifier = medic.OpenSetClassifier(**QUICK, output=tmp_path).fit(list(IMAGES[:, :, :, 0]), LABEL)
    assert set(classifier.predict(IMAGES[:6])) <= {*range(6), "unknown"}
    assert classifier.run_.path.parent == tmp_path


def test_parameters_are_the_settings():
    classifier = medic.OpenSetClassifier(lr=0.1)
    assert classifier.get_params()["lr"] == 0.1
    assert classifier.get_params().keys() < SETTINGS.keys()
    assert {"method", "backbone", "weights", "iterations", "hparams", "threshold"} <= classifier.get_params().keys()
    copy = clone(classifier.set_params(method="vrex", hparams={"anneal": 3}))
    assert copy.get_params() == classifier.get_params()
    assert repr(copy) == "OpenSetClassifier(hparams={'anneal': 3}, lr=0.1, method='vrex')"
    with pytest.raises(MedicError, match="learning_rat"):
        classifier.set_params(learning_rat=1)
    with pytest.raises(MedicError, match="fit"):
        classifier.set_params(dataset="pacs")


def test_it_is_not_fitted_yet():
    for call in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(medic.OpenSetClassifier(), call)(IMAGES)


def test_pickle(fitted):
    assert (pickle.loads(pickle.dumps(fitted)).predict(IMAGES) == fitted.predict(IMAGES)).all()


@pytest.mark.slow
def test_cross_validation_over_domains():
    with sklearn.config_context(enable_metadata_routing=True):
        classifier = medic.OpenSetClassifier(**QUICK).set_fit_request(groups=True)
        scores = cross_val_score(classifier, IMAGES, LABEL, cv=LeaveOneGroupOut(), params={"groups": DOMAIN})
        assert scores.shape == (3,)
        assert (scores > 0).all()
        search = GridSearchCV(classifier, {"lr": [1e-6, 0.03]}, cv=LeaveOneGroupOut())
        assert search.fit(IMAGES, LABEL, groups=DOMAIN).best_params_ == {"lr": 0.03}


def test_pipelines():
    pipeline = make_pipeline(FunctionTransformer(np.array), medic.OpenSetClassifier(**QUICK))
    assert pipeline.fit(IMAGES, LABEL).predict(IMAGES[:2]).shape == (2,)
