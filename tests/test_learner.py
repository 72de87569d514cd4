"""`Learner`: every method in a loop of one's own, with exactly what it declares to need."""

import copy

import pytest
import torch
from torch import nn

import medic
from medic.errors import MedicError
from medic.methods import METHODS, find_needs
from medic.models import HEADS, Backbone, Classifier, Ensemble
from medic.models.backbones import HALVES
from medic.objectives import OBJECTIVES
from medic.objectives.needs import MODEL, NEEDS, OUTPUTS, TRAINING
from medic.utils.outputs import Output
from tests.built import built
from tests.messages import naming
from tests.small import small_gfnet, small_network

pytestmark = pytest.mark.usefixtures("small_adversaries")

CLASSES, DOMAINS, SIDE = 6, 3, 32
DOMAIN, LABEL = torch.cartesian_prod(torch.arange(DOMAINS), torch.arange(CLASSES)).repeat(2, 1).T
INPUTS = torch.rand(len(LABEL), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
INPUTS += LABEL[:, None, None, None] / CLASSES
WHOLE = {"tap", "networks", "branches"}
"""Needs that only the package's own models meet."""


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


class Minimal(nn.Module):
    """A model with the parts that are declared, and no other."""

    def __init__(self, head, needs):
        super().__init__()
        network = small_network()
        if "backbone" in needs:
            self.backbone = network
        self.body, self.needs = network, needs
        self.outputs = HEADS[head](32, CLASSES)
        if {"sizes", "backbone"} & set(needs):
            self.features = 32
        if "sizes" in needs:
            self.classes = CLASSES
        if "classify" in needs:
            self.classify = self.outputs

    def forward(self, x):
        output = self.outputs(self.body(x))
        return Output(output.logits, **{name: getattr(output, name) for name in OUTPUTS if name in self.needs})


def make_model(name, needs):
    torch.manual_seed(0)
    head = OBJECTIVES[METHODS[name].preset.get("objective", "ce")].heads[0]
    if METHODS[name].backbone:
        return Classifier(Backbone(small_gfnet(SIDE), 8, HALVES), CLASSES, head)
    if "networks" in needs:
        return Ensemble([Classifier(Backbone(small_network(), 32, HALVES), CLASSES, head) for _ in range(DOMAINS)])
    if WHOLE & set(needs):
        return Classifier(Backbone(small_network(), 32, HALVES), CLASSES, head)
    return Minimal(head, needs)


def make_arguments(needs):
    setup = medic.Setup(images=len(LABEL), shape=(3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.5,) * 3)
    arguments = {"setup": setup, "train_set": (INPUTS, LABEL, DOMAIN), "validate": lambda: 1.0}
    return {name: arguments[name] for name in TRAINING if name in needs} | {"iterations": 4}


def make_learner(name, needs=None, **changes):
    needs = find_needs(METHODS[name]) if needs is None else needs
    arguments = {**make_arguments(needs), **changes}
    return medic.Learner(name, make_model(name, needs), sgd, classes=CLASSES, domains=DOMAINS, **arguments)


def steps(learner, count=3):
    rows = torch.arange(len(LABEL))
    index = rows if learner.method.name == "hyprometa" else None
    return [learner.step(INPUTS, LABEL, DOMAIN, index) for _ in range(count)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_with_what_it_declares(name):
    learner = make_learner(name)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    learner.model.train()
    assert all(torch.isfinite(update.loss) for update in steps(learner))
    assert any(not torch.equal(old, new) for old, new in zip(before, learner.model.parameters(), strict=True))
    score = learner.finish()
    metrics = medic.evaluate(learner.model, (INPUTS, LABEL.where(LABEL < 5, -1)), score=score)
    assert 0 <= metrics["oscr"] <= 1


LACKED = [
    (name, need)
    for name, method in METHODS.items()
    for need in find_needs(method)
    if method.backbone is None or need in TRAINING  # the only backbone of ALOFT has all parts
]


@pytest.mark.parametrize(("name", "need"), LACKED)
def test_a_missing_part_is_named(name, need):
    needs = [own for own in find_needs(METHODS[name]) if own != need]
    with pytest.raises(MedicError) as error:
        learn_without(name, need, needs)
    assert str(error.value).startswith(f"method {name!r} requires")
    if need not in MODEL:  # a model that has no part at all is refused for its first
        assert NEEDS[need].text in str(error.value)
        assert NEEDS[need].way in str(error.value)


def learn_without(name, need, others):
    """Take steps with a model or arguments that lack one need of a method."""
    if need in TRAINING:
        make_learner(name, others)
        return
    model = Minimal("close", [])
    if need not in MODEL:  # a model that has all parts but not this output
        model = make_model(name, find_needs(METHODS[name]))
        model.forward = Lacking(model.forward, need)
    arguments = make_arguments(find_needs(METHODS[name]))
    steps(medic.Learner(name, model, sgd, classes=CLASSES, domains=DOMAINS, **arguments))


class Lacking:
    """A forward pass without some output."""

    def __init__(self, forward, name):
        self.forward, self.name = forward, name

    def __call__(self, x):
        return self.forward(x)._replace(**{self.name: None})


@pytest.mark.parametrize("name", ["erm", "medic++", "medic", "groupdro", "rsc", "arpl", "miro", "cirl"])
def test_an_update_is_that_of_a_run(mini, name):
    trainer = built(dataset=mini, method=name, augment="none", lr=0.01, batch_size=4, clip_norm=1.0)
    trainer.model.train()
    setup = trainer.objective._setup if name == "cirl" else None
    model = copy.deepcopy(trainer.model)
    if name == "miro":
        model._tapped = ()  # the learner taps it itself

    def same(parameters):
        groups = trainer.optimizer.param_groups
        own = [{"params": model.body()}, {"params": model.heads(), "lr": groups[1]["lr"]}]
        shared = {key: groups[0][key] for key in ("lr", "momentum", "weight_decay")}
        return torch.optim.SGD(own, **shared)

    torch.manual_seed(1)
    learner = medic.Learner(
        name,
        model,
        same,
        classes=6,
        domains=3,
        setup=setup,
        inner_lr=getattr(trainer.strategy, "lr", None),
        clip_norm=1.0,
    )
    learner.objective.load_state_dict(trainer.objective.state_dict())
    for iteration in range(3):
        batch = trainer._batch(trainer._next())
        drawn, _ = trainer._iteration.load(batch)
        torch.manual_seed(iteration)
        trainer.updater(drawn)
        torch.manual_seed(iteration)
        learner.update(drawn)
    for (key, one), other in zip(trainer.model.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(one, other), key


@pytest.mark.parametrize("name", ["medic++", "swad", "arpl-cs", "hyprometa", "ebil-hads", "fish-domainbed", "fishr"])
def test_a_restored_learner_goes_on_in_the_same_way(name):
    whole, half = make_learner(name), make_learner(name)
    for learner in (whole, half):
        learner.model.train()
        torch.manual_seed(3)
        steps(learner, 2)
    fresh = make_learner(name)
    fresh.model.train()
    steps(fresh, 1)
    fresh.load_state_dict(half.state_dict())
    for learner in (whole, fresh):
        torch.manual_seed(4)
        steps(learner, 2)
    for one, other in zip(whole.model.state_dict().values(), fresh.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("iterations", "begins"), [(None, 500), (100, 10)])
def test_a_penalty_begins_after_a_share_of_the_updates(iterations, begins):
    model = make_model("vrex", find_needs(METHODS["vrex"]))
    learner = medic.Learner("vrex", model, sgd, classes=CLASSES, domains=DOMAINS, iterations=iterations)
    assert learner.objective.restart_iterations(1) == {begins}


def test_an_optimizer_of_yours_gets_the_parameters_of_the_method():
    model = make_model("miro", find_needs(METHODS["miro"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    learner = medic.Learner("miro", model, optimizer, classes=CLASSES, domains=DOMAINS)
    assert learner.optimizer is optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, pytest.approx(0.2)]


def test_an_optimizer_of_another_model_is_refused():
    other = nn.Linear(2, 2)
    with pytest.raises(MedicError, match="must contain the model's parameters"):
        medic.Learner("erm", Minimal("close", []), torch.optim.SGD(other.parameters()), classes=6, domains=3)


def test_a_batch_without_a_domain_is_refused_where_domains_are_remembered():
    learner = make_learner("groupdro")
    kept = DOMAIN < 2
    with (
        pytest.warns(UserWarning, match="domain"),
        pytest.raises(MedicError, match="every domain in every batch, got 2 of 3"),
    ):
        learner.step(INPUTS[kept], LABEL[kept], DOMAIN[kept])


def test_corrected_labels_need_the_rows_of_a_batch():
    learner = make_learner("hyprometa")
    with pytest.raises(MedicError, match=r"step\(x, y, domain, index\)"):
        learner.step(INPUTS, LABEL, DOMAIN)


def test_the_training_set_may_be_a_sequence():
    pairs = [(x, int(y)) for x, y in zip(INPUTS, LABEL, strict=True)]
    learner = make_learner("openmax", train_set=(pairs, LABEL, DOMAIN))
    learner.model.train()
    steps(learner)
    whole = make_learner("openmax")
    whole.model.train()
    steps(whole)
    for one, other in zip(
        learner.finish().function.tensors.values(), whole.finish().function.tensors.values(), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("changes", "message"), [
    ({"optimizer": "sgd"}, "optimizer str"),
    ({"optimizer": lambda parameters: None}, "optimizer NoneType"),
    ({"model": lambda x: x}, "model function torch.nn.Module"),
    ({"method": nn.Linear}, "method type"),
    ({"precision": "fp16"}, "fp16 bf16"),
    ({"clip_norm": -1.0}, "clip_norm -1"),
    ({"train_set": (INPUTS, LABEL)}, "train_set three"),
    ({"classes": 5}, "logit per class 5 6"),
    ({"domains": 2}, "domain 2 is out of range for 2 domains"),
])  # fmt: skip
def test_mistakes(changes, message):
    model = Minimal("close", [])
    settings = {"method": "erm", "model": model, "optimizer": sgd, "classes": CLASSES, "domains": DOMAINS, **changes}
    with pytest.raises(MedicError, match=naming(message)):
        medic.Learner(**settings).step(INPUTS, LABEL, DOMAIN)


def test_names_in_a_batch_are_refused():
    with pytest.raises(MedicError, match="domain must be a tensor"):
        make_learner("erm").step(INPUTS, LABEL, ["a"] * len(LABEL))


def test_finish_keeps_the_mode_and_takes_batches_of_a_loader():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(INPUTS[0].numel()), nn.Linear(INPUTS[0].numel(), CLASSES))
    settings = {"classes": CLASSES, "domains": DOMAINS, "validate": lambda: 1.0, "iterations": 4}
    learner = medic.Learner("swad", model, sgd, **settings)
    steps(learner)
    with pytest.raises(MedicError, match="batches"):
        learner.finish()
    learner.model.eval()
    learner.finish([(INPUTS, LABEL, DOMAIN)])
    assert not any(module.training for module in learner.model.modules())


@pytest.mark.parametrize("name", ["erm", "cirl", "ebil-hads"])
def test_losses_are_in_single_precision(name):
    learner = make_learner(name, precision="bf16")
    assert steps(learner, 1)[0].risks.dtype == torch.float32


def test_methods_list_what_they_need():
    needs = {entry["method"]: entry["needs"] for entry in medic.list_methods()}
    assert needs["erm"] == "logits"
    assert needs["medic++"] == "one-vs-all outputs"
    assert needs["arpl"] == "distances to reciprocal points"
    assert needs["openmax"] == "the training set"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_on_a_gpu(name, precision):
    needs = find_needs(METHODS[name])
    model = make_model(name, needs).cuda()
    arguments = {**make_arguments(needs), "precision": precision}
    learner = medic.Learner(name, model, sgd, classes=CLASSES, domains=DOMAINS, **arguments)
    learner.model.train()
    assert all(torch.isfinite(update.loss) for update in steps(learner))
    learner.finish()
