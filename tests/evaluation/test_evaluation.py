"""The metrics of an evaluation, from labelled outputs."""

import pytest
import torch

from medic import openset
from medic.evaluation.evaluator import LabelledOutputs, mean_metrics, measure
from medic.openset.metrics import RANKING_METRICS, Ranking
from medic.utils.outputs import Output


def labelled(samples, lowest, seed, domains=2):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, 3, generator=draw)
    output = Output(logits, torch.randn(samples, 2, 3, generator=draw), torch.randn(samples, 4, generator=draw))
    label = torch.randint(lowest, 3, (samples,), generator=draw)
    return LabelledOutputs(output, label, torch.randint(0, domains, (samples,), generator=draw))


@pytest.fixture
def outputs():
    return {"validation": labelled(30, 0, 0), "target": labelled(40, -1, 1)}


def test_a_record_has_these_keys_in_this_order(outputs):
    record = measure(outputs, ["a", "b"], openset.get_score("bcls"), "source")
    assert list(record) == ["target", "targets"]
    assert list(record["targets"]) == ["a", "b"]
    assert " ".join(record["target"]) == (
        "acc score threshold_rule threshold hscore acc_k acc_u hscore/oracle-10 "
        "oscr/cls oscr/bcls oscr/max-logit oscr/energy oscr/gen oscr_c oscr_b "
        + " ".join(name for name in openset.RANKING_METRICS if name != "acc")
        + " aurc ece/cls brier/cls nll/cls ece/bcls brier/bcls nll/bcls conf_p conf_n balance"
    )


@pytest.mark.parametrize("name", ["cls", "bcls", "energy", "openmax", "knn"])
@pytest.mark.parametrize("rule", ["source", "oracle-10"])
def test_a_record_is_made_of_the_public_functions(outputs, name, rule):
    train = labelled(60, 0, 2)
    score = openset.get_score(name).fit(train.output, train.label)
    threshold = openset.threshold(
        rule,
        score,
        validation=outputs["validation"].output,
        target=outputs["target"].output,
        label=outputs["target"].label,
    )
    record = measure(outputs, ["a", "b"], score, rule)
    here = outputs["target"].where(outputs["target"].domain == 1)
    samples = (score(here.output), openset.predicted_class(here.output), here.label)
    oracle = openset.threshold("oracle-10", score, target=here.output, label=here.label)
    expected = {
        **openset.evaluate(*samples),
        **openset.hscore(*samples, threshold.value)._asdict(),
        "threshold": threshold.value,
        "hscore/oracle-10": openset.hscore(*samples, oracle.value).hscore,
        f"oscr/{name}": openset.oscr(*samples),
        "oscr_c": openset.oscr(openset.score("cls", here.output), *samples[1:]),
        "oscr_b": openset.oscr(openset.score("bcls", here.output), *samples[1:]),
        "conf_p": openset.conf_p(here.output.ova, here.label),
        "conf_n": openset.conf_n(here.output.ova, here.label),
        "balance": float(openset.balance(here.output.ova, here.label).nanmean()),
    }
    assert {key: record["targets"]["b"][key] for key in expected} == expected
    assert record["target"] == mean_metrics(list(record["targets"].values()))


def test_a_metric_is_one_entry(outputs, monkeypatch):
    def accepted(ranking: Ranking) -> float:
        return int(ranking.known[1]) / int(ranking.known[-1])

    monkeypatch.setitem(RANKING_METRICS, "first", accepted)
    assert 0 <= measure(outputs, ["a", "b"], openset.get_score("cls"), "source")["target"]["first"] <= 1


def test_without_unknown_images_accuracy_and_calibration_are_measured(outputs):
    outputs["target"] = labelled(40, 0, 1)
    record = measure(outputs, ["a", "b"], openset.get_score("cls"), "source")
    assert list(record["target"]) == ["acc", "ece/cls", "brier/cls", "nll/cls", "ece/bcls", "brier/bcls", "nll/bcls"]


def test_unknown_classes_of_the_sources_are_measured_without_the_domain_shift(outputs):
    unknown = labelled(20, 0, 3)
    outputs["source-unknown"] = unknown._replace(label=torch.full_like(unknown.label, -1))
    record = measure(outputs, ["a", "b"], openset.get_score("cls"), "source")
    assert record["source"]["acc_u"] < 1
    assert record["source"]["acc"] == outputs["validation"].accuracy
