"""HyProMeta: the geometry and the losses, in float64."""

import math

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.models import HEADS
from medic.objectives import Objective, Ova, Setup, ce
from medic.strategies import TwoStep
from medic.systems.hyprometa import BORDER, HyProMeta, distance, exp0, mean
from medic.tasks import Step
from medic.utils.outputs import Output
from tests.messages import naming

pytestmark = pytest.mark.usefixtures("double")

C = 3


class TestGeometry:
    def test_exponential_map(self):
        """tanh(0.5) = 0.462117 away from the origin, which is twice as far as the velocity says."""
        point = exp0(torch.tensor([[0.5, 0.0]]))
        assert point[0].tolist() == pytest.approx([0.462117, 0.0], abs=5e-7)
        assert distance(point, torch.zeros(1, 2)).item() == pytest.approx(1.0, rel=1e-12)
        assert exp0(torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]

    def test_far_points_stay_inside(self):
        point = exp0(torch.tensor([[30.0, 40.0]]))
        assert point.norm().item() == pytest.approx(BORDER, rel=1e-12)
        assert distance(point, -point).isfinite().all()

    def test_distance_is_arcosh(self):
        a, b = exp0(torch.randn(4, 3)), exp0(torch.randn(5, 3))
        for i, j in [(0, 0), (3, 4)]:
            ratio = (a[i] - b[j]).square().sum() / ((1 - a[i].square().sum()) * (1 - b[j].square().sum()))
            assert distance(a, b)[i, j].item() == pytest.approx(math.acosh(1 + 2 * ratio.item()), rel=1e-10)
        assert torch.allclose(distance(a, b), distance(b, a).T)
        assert distance(a, a).diagonal().tolist() == pytest.approx([0.0] * 4, abs=1e-7)

    def test_near_points_keep_their_digits(self):
        """Where lengths are near 0 the distance is twice the euclidean one."""
        assert distance(torch.tensor([[1e-9, 0.0]]), torch.zeros(1, 2)).item() == pytest.approx(2e-9, rel=1e-9)

    def test_mean_of_opposites_is_the_origin(self):
        a = exp0(torch.randn(1, 4))
        assert mean(torch.cat([a, -a])).tolist() == pytest.approx([0.0] * 4, abs=1e-15)

    def test_mean_of_two_is_half_way(self):
        """On a line from the origin, lengths of velocities are positions."""
        direction = torch.nn.functional.normalize(torch.randn(1, 4))
        middle = mean(exp0(torch.tensor([[0.2], [1.0]]) * direction))
        assert torch.allclose(middle, exp0(0.6 * direction)[0])
        both = exp0(torch.randn(2, 4))
        ways = distance(mean(both)[None], both)[0]
        assert ways[0].item() == pytest.approx(ways[1].item(), rel=1e-9)
        assert ways.sum().item() == pytest.approx(distance(both[:1], both[1:]).item(), rel=1e-9)

    def test_mean_of_one(self):
        a = exp0(torch.randn(2, 1, 3))
        assert torch.allclose(mean(a), a[:, 0])


class Flat(nn.Module):
    """The head of HyProMeta on inputs that are features already."""

    def __init__(self, features=4, norm=False):
        super().__init__()
        self.norm = nn.BatchNorm1d(features) if norm else nn.Identity()
        self.head = HEADS["prompted"](features, C)

    def forward(self, x):
        return self.head(self.norm(x))


def made(model, features=4, **numbers):
    objective = HyProMeta([ce, Ova(0.5)], **numbers)
    objective.prepare(model, Setup(shape=(features,)))
    return objective


def step(clean=None, index=0, sizes=(3, 3)):
    count = sum(sizes)
    attributes = {} if clean is None else {"clean": torch.tensor(clean)}
    return Step(torch.randn(count, 4), torch.arange(count) % C, sizes, attributes, index=index)


def test_head():
    head = HEADS["prompted"](4, C)
    output = head(torch.randn(5, 4))
    assert (output.logits.shape, output.ova.shape, output.unknown.shape) == ((5, C), (5, 2, C), (5,))


def test_zero_logits():
    """Everything is undecided: ln 3 + ln 2 for an image, and 0.1 ln 4 + ln 2 for it with the prompt."""
    model = Flat()
    for parameter in model.head.parameters():
        nn.init.zeros_(parameter)
    risk = made(model)(model, step())
    assert risk.tasks.tolist() == pytest.approx([math.log(3) + math.log(2)] * 2, rel=1e-12)
    assert risk.penalty.item() == pytest.approx(0.1 * math.log(4) + math.log(2), rel=1e-12)
    assert made(model, prompt=2.0, reject=0.0)(model, step()).penalty.item() == pytest.approx(2 * math.log(4))


def test_prompted_images_are_the_sum():
    model, here = Flat(), step()
    objective = made(model, prompt=1.0, reject=0.0)
    outputs = model.head.close_head(here.x + objective.v)
    expected = nn.functional.cross_entropy(outputs, torch.full((6,), C))
    assert objective(model, here).penalty.item() == pytest.approx(expected.item(), rel=1e-12)
    objective = made(model, prompt=0.0, reject=1.0)
    negative = model(here.x + objective.v).ova.softmax(1)[:, 0]
    assert objective(model, here).penalty.item() == pytest.approx(-negative.log().mean().item(), rel=1e-12)


@pytest.mark.parametrize(("index", "expected"), [(0, [1.5, 5.0, 8.0]), (1, [3.0, 5.0, 8.0])])
def test_meta_train_is_on_clean_and_meta_test_on_noisy_samples(index, expected):
    """Tasks of both kinds, of clean samples alone, and of noisy ones alone."""
    losses = torch.arange(1.0, 10.0)
    here = step([1, 1, 0, 1, 1, 1, 0, 0, 0], index, (3, 3, 3))
    assert made(Flat()).average(losses, here).tolist() == pytest.approx(expected)


def test_losses_that_do_not_count_have_no_gradient():
    losses = torch.tensor([1.0, 2.0, torch.inf], requires_grad=True)
    risk = made(Flat()).average(losses, step([1, 1, 0], 0, (3,)))
    assert torch.autograd.grad(risk.sum(), losses)[0].tolist() == [0.5, 0.5, 0.0]


def test_samples_without_flags_all_count():
    losses = torch.arange(1.0, 7.0)
    assert made(Flat()).average(losses, step()).tolist() == [2.0, 5.0]


def test_gradients_go_where_they_should():
    """The last output and the prompt hear of prompted images only."""
    model, here = Flat(), step()
    objective = made(model)
    risk = objective(model, here)
    own = torch.autograd.grad(risk.tasks.sum(), [model.head.close_head.weight], retain_graph=True)[0]
    assert (own[-1] == 0).all()
    assert (own[:-1] != 0).all()
    assert torch.autograd.grad(risk.tasks.sum(), objective.v, retain_graph=True, allow_unused=True) == (None,)
    weight, prompt = torch.autograd.grad(risk.penalty, [model.head.close_head.weight, objective.v])
    assert (weight != 0).all()
    assert (prompt != 0).all()


@pytest.mark.parametrize("forward", ["step", "task"])
def test_the_prompt_is_trained_with_the_network(forward):
    """∂/∂v of A(θ) + B(θ - α A'(θ)), θ the weights and v together, against a finite difference."""
    model = Flat()
    objective = HyProMeta([ce, Ova(0.5)], passes=forward)
    objective.prepare(model, Setup(shape=(4,)))
    steps = [step([1, 1, 0] * 2, 0), step([1, 0, 0] * 2, 1)]
    strategy = TwoStep(lr=0.1, second_order=True)
    strategy(model, steps, objective)
    gradient = objective.v.grad[0].item() * 4

    def total(change):
        with torch.no_grad():
            objective.v[0] += change
        value = strategy(model, steps, objective).risks.sum().item()
        with torch.no_grad():
            objective.v[0] -= change
        return value

    assert gradient == pytest.approx((total(1e-5) - total(-1e-5)) / 2e-5, rel=1e-6)


def test_prompted_images_leave_batch_norm_statistics_alone():
    model, plain, here = Flat(norm=True), Flat(norm=True), step()
    plain.load_state_dict(model.state_dict())
    objective = made(model)
    strategy = TwoStep(second_order=True)
    strategy(model, [here, here], objective)
    strategy(plain, [here, here], Objective([ce, Ova(0.5)]))
    assert torch.equal(model.norm.running_mean, plain.norm.running_mean)
    assert torch.equal(model.norm.running_var, plain.norm.running_var)
    assert model.norm.momentum == 0.1


def test_what_it_needs_is_explained():
    with pytest.raises(MedicError, match=naming("prepare")):
        HyProMeta([ce])(Flat(), step())

    class Closed(nn.Module):
        def forward(self, x):
            return Output(x[:, :C], torch.stack([x[:, :C], -x[:, :C]], dim=1))

    with pytest.raises(MedicError, match=naming("--head prompted")):
        made(Closed())(Closed(), step())
