"""DAML against its formulas, in float64."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from medic.errors import MedicError
from medic.models import HALVES, Backbone, Classifier, Ensemble
from medic.objectives import Setup, ce
from medic.strategies import TwoStep
from medic.systems import daml
from medic.systems.daml import Daml
from medic.tasks import Step
from tests.messages import naming

pytestmark = pytest.mark.usefixtures("double")

CLASSES = 4


def model(networks=3):
    """Networks with 2 inputs and 5 features, whose heads are far enough from zero to disagree."""
    made = [Classifier(Backbone(nn.Linear(2, 5), 5, HALVES), CLASSES, "close") for _ in range(networks)]
    for network in made:
        nn.init.normal_(network.head.close_head.weight)
    return Ensemble(made)


def step(index, size=6, domains=3):
    count = size * domains
    return Step(torch.randn(count, 2), torch.randint(CLASSES, (count,)), (size,) * domains, index=index)


def silenced(networks=3):
    made = model(networks)
    for parameter in made.heads():
        nn.init.zeros_(parameter)
    return made


def test_weights_of_the_dirichlet_law():
    like = torch.zeros(())
    train, test = (daml.dirichlet(law, 30_000, like) for law in ([0.6, 0.2, 0.2], [0.2, 0.6, 0.6]))
    assert train.mean(0).tolist() == pytest.approx([0.6, 0.2, 0.2], abs=0.01)
    assert test.mean(0).tolist() == pytest.approx([1 / 7, 3 / 7, 3 / 7], abs=0.01)
    assert train.var(0, correction=0).tolist() == pytest.approx([0.12, 0.08, 0.08], abs=5e-3)  # p (1 - p) / 2
    torch.testing.assert_close(train.sum(1), torch.ones(30_000))
    torch.testing.assert_close(daml.dirichlet([1.0], 3, like), torch.ones(3, 1))


def test_the_own_domain_weighs_most_in_the_first_step_and_least_in_the_second(monkeypatch):
    laws = []
    draw = daml.dirichlet
    monkeypatch.setattr(daml, "dirichlet", lambda law, *rest: laws.append(tuple(law)) or draw(law, *rest))
    for index in (0, 1):
        Daml([ce])(model(), step(index))
    mixing = [law for law in laws if law != (1.0, 1.0)]
    assert mixing == [
        (0.6, 0.2, 0.2),
        (0.2, 0.6, 0.2),
        (0.2, 0.2, 0.6),
        (0.2, 0.6, 0.6),
        (0.6, 0.2, 0.6),
        (0.6, 0.6, 0.2),
    ]
    assert len(laws) - len(mixing) == 3  # a teacher of every domain, in the first step alone


@pytest.mark.parametrize("networks", [2, 3])
def test_heads_that_say_nothing(networks):
    """Every cross-entropy is ln C, and a teacher that says the same teaches nothing."""
    first, second = (Daml([ce])(silenced(networks), step(index, domains=networks)).total for index in (0, 1))
    assert first.item() == pytest.approx(networks * (1 + 3) * math.log(CLASSES))
    assert second.item() == pytest.approx(networks * (networks - 1 + 3) * math.log(CLASSES))


def test_equal_networks_have_nothing_to_teach():
    same, batch = model(), step(0)
    for network in same.networks[1:]:
        network.load_state_dict(same.networks[0].state_dict())
    risk = Daml([ce], mixup=0.0, distill=7.0)(same, batch)
    expected = functional.cross_entropy(same.networks[0](batch.x).logits, batch.y, reduction="none")
    assert risk.tasks.tolist() == pytest.approx(expected.view(3, 6).mean(1).tolist())


def test_mixed():
    values = torch.tensor([[[1.0], [2.0]], [[10.0], [20.0]]])
    order, weights = torch.tensor([[1, 0], [0, 1]]), torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    assert daml.mixed(values, order, weights).flatten().tolist() == [0.25 * 2 + 0.75 * 10, 1.0]


def fix_weights(monkeypatch, weights):
    """Take weights by the number of parts instead of drawing them."""
    monkeypatch.setattr(daml, "dirichlet", lambda law, count, like: weights[len(law)].expand(count, -1))


def test_every_term_by_hand(monkeypatch):
    """One sample of every domain, so that no permutation matters, and weights that are given."""
    mixing, teaching = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.9, 0.1])
    fix_weights(monkeypatch, {3: mixing, 2: teaching})
    three, objective = model(), Daml([ce], temperature=3.0, distill=0.7, mixup=2.0)
    first, second = step(0, size=1), step(1, size=1)

    def mix(network, batch):
        logits = network.head.close_head(mixing @ network.backbone(batch.x))
        return -(mixing @ functional.one_hot(batch.y, CLASSES).double() * logits.log_softmax(0)).sum()

    expected = []
    for m, network in enumerate(three.networks):
        x, y = first.x[m], first.y[m]
        others = [other for other in three.networks if other is not network]
        teacher = sum(w * (o(x[None]).logits[0] / 3).softmax(0) for w, o in zip(teaching, others, strict=True))
        student = network(x[None]).logits[0]
        divergence = (teacher * (teacher.log() - (student / 3).log_softmax(0))).sum()
        expected.append(-student.log_softmax(0)[y] + 0.7 * 9 * divergence + 2 * mix(network, first))
    torch.testing.assert_close(objective(three, first).tasks, torch.stack(expected))

    expected = []
    for m, network in enumerate(three.networks):
        losses = functional.cross_entropy(network(second.x).logits, second.y, reduction="none")
        expected.append(losses.sum() - losses[m] + 2 * mix(network, second))
    torch.testing.assert_close(objective(three, second).tasks, torch.stack(expected))


def gradients(three, risk):
    """How much a risk moves each of the networks."""
    slopes = torch.autograd.grad(risk, list(three.parameters()), allow_unused=True, retain_graph=True)
    named = dict(zip((name for name, _ in three.named_parameters()), slopes, strict=True))
    return [
        sum(float(g.abs().sum()) for name, g in named.items() if name.startswith(f"networks.{m}.") and g is not None)
        for m in range(len(three.networks))
    ]


@pytest.mark.parametrize("index", [0, 1])
def test_the_risk_of_a_network_moves_no_other(index):
    three = model()
    risk = Daml([ce])(three, step(index))
    for m in range(3):
        moved = gradients(three, risk.tasks[m])
        assert [amount > 0 for amount in moved] == [other == m for other in range(3)]


@pytest.mark.parametrize(
    ("index", "mixup", "seen"), [(0, 0.0, "own"), (1, 0.0, "others"), (0, 3.0, "all"), (1, 3.0, "all")]
)
def test_which_domains_a_network_learns_from(index, mixup, seen):
    three, batch = model(), step(index)
    batch.x.requires_grad_()
    risk = Daml([ce], mixup=mixup)(three, batch)
    for m in range(3):
        (gradient,) = torch.autograd.grad(risk.tasks[m], batch.x, retain_graph=True)
        learns = [bool(part.any()) for part in gradient.split(6)]
        assert learns == [{"own": d == m, "others": d != m, "all": True}[seen] for d in range(3)]


def test_features_and_labels_are_mixed_alike():
    """Where the features are the labels, they still are when both are mixed."""
    three = Ensemble([Classifier(Backbone(nn.Identity(), 3, HALVES), 3, "close") for _ in range(3)])
    y = torch.tensor([0, 1, 2, 1, 2, 0, 2, 0, 1])  # every domain has every class
    batch = Step(functional.one_hot(y, 3).double(), y, (3, 3, 3))
    mixes = []
    draw = daml.mixed

    def kept(values, order, weights):
        mixes.append(draw(values, order, weights))
        return mixes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daml, "mixed", kept)
        Daml([ce])(three, batch)
    for features, labels in zip(mixes[::2], mixes[1::2], strict=True):
        torch.testing.assert_close(features, labels)
        torch.testing.assert_close(labels.sum(1), torch.ones(3))


def test_the_update():
    """L_tr at θ, a step of 0.01 down all of it, L_te there; p.grad is the sum of both gradients over the tasks."""
    two, first, second = model(2), step(0, domains=2), step(1, domains=2)
    parameters = list(two.parameters())
    TwoStep(lr=0.01)(two, [first, second], Daml([ce], mixup=0.0))
    totals = [4 * parameter.grad for parameter in parameters]

    def loss(m, batch, d):
        return functional.cross_entropy(two.networks[m](batch.x.chunk(2)[d]).logits, batch.y.chunk(2)[d])

    def distilled(m):
        x = first.x.chunk(2)[m]
        teacher = (two.networks[1 - m](x).logits.detach() / 2).softmax(1)
        student = (two.networks[m](x).logits / 2).log_softmax(1)
        return 4 * (teacher * (teacher.log() - student)).sum(1).mean()

    train = torch.autograd.grad(sum(loss(m, first, m) + distilled(m) for m in range(2)), parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, train, strict=True):
            parameter -= 0.01 * gradient
    test = torch.autograd.grad(loss(0, second, 1) + loss(1, second, 0), parameters)
    torch.testing.assert_close(totals, [a + b for a, b in zip(train, test, strict=True)])


def test_penalties_are_added():
    three, batch = silenced(), step(1)
    risk = Daml([ce], penalties=[lambda tasks, output, step: tasks.mean() * 0 + 5.0])(three, batch)
    assert risk.total.item() == pytest.approx(3 * 5 * math.log(CLASSES) + 3 * 5.0)


def test_what_does_not_fit():
    one = Classifier(Backbone(nn.Linear(2, 5), 5, HALVES), CLASSES, "close")
    with pytest.raises(MedicError, match=naming("0 networks Classifier 3 tasks")):
        Daml([ce]).prepare(one, Setup(tasks=3))
    with pytest.raises(MedicError, match=naming("3 networks Ensemble 2 tasks")):
        Daml([ce])(model(3), step(0, domains=2))
    uneven = Step(torch.randn(4, 2), torch.zeros(4, dtype=torch.long), (3, 1))
    with pytest.raises(MedicError, match=naming("tasks size (3, 1)")):
        Daml([ce])(model(2), uneven)
    with pytest.raises(MedicError, match=naming("temperature 0")):
        Daml([ce], temperature=0)
    with pytest.raises(MedicError, match=naming("alpha_other -1")):
        Daml([ce], alpha_other=-1)
