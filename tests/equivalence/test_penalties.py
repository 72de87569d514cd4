"""Penalties, reweighting and masks against the closed forms of their papers."""

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.models import Classifier, create_backbone
from medic.objectives import Rsc, Setup, ce, objective
from medic.objectives.penalties.balance import Balance
from medic.objectives.penalties.coral import Coral
from medic.objectives.penalties.groupdro import GroupDro
from medic.objectives.penalties.head_gradients import Fishr, Hgp, Hutchinson
from medic.objectives.penalties.miro import Miro
from medic.objectives.penalties.transport import Transport, transport_plan
from medic.objectives.penalties.vrex import VRex
from medic.objectives.rsc import percentile
from medic.strategies import AndMask, Joint, SandMask
from medic.tasks import Step
from medic.utils.outputs import Output
from tests.messages import naming

pytestmark = pytest.mark.usefixtures("double")


def step(sizes, y=None, x=None):
    count = sum(sizes)
    y = torch.zeros(count, dtype=torch.int64) if y is None else torch.tensor(y)
    return Step(torch.zeros(count, 1) if x is None else x, y, tuple(sizes))


def coefficients(penalty, risks):
    """The mean risk with its penalty, and its derivatives by the task risks."""
    tasks = torch.tensor(risks, requires_grad=True)
    total = tasks.mean() + penalty(tasks, Output(torch.zeros(len(risks), 1)), step([1] * len(risks)))
    return total.item(), torch.autograd.grad(total, tasks)[0].tolist()


def test_vrex():
    total, weights = coefficients(VRex(10.0, anneal=0), [1.0, 2.0, 3.0])
    assert total == pytest.approx(8.666667, abs=5e-7)
    assert weights == pytest.approx([-6.333333, 0.333333, 7.0], abs=5e-7)


def test_vrex_counts_once_until_annealed():
    penalty = VRex(10.0, anneal=2)
    totals = [coefficients(penalty, [1.0, 3.0])[0] for _ in range(4)]
    assert totals == pytest.approx([3.0, 3.0, 12.0, 12.0])
    assert penalty.restart_step == 2


def test_groupdro():
    penalty = GroupDro(eta=0.1)
    total, weights = coefficients(penalty, [1.0, 2.0])
    assert weights == pytest.approx([0.475021, 0.524979], abs=5e-7)
    assert total == pytest.approx(1.524979, abs=5e-7)
    assert coefficients(penalty, [1.0, 2.0])[1][1] > weights[1]  # it remembers


def test_groupdro_with_a_huge_loss():
    assert coefficients(GroupDro(eta=1.0), [1.0, 5000.0])[1] == pytest.approx([0.0, 1.0])


def test_coral():
    features = torch.tensor([[0.0, 0.0], [2.0, 2.0], [1.0, 0.0], [1.0, 2.0]])
    output = Output(torch.zeros(4, 2), features=features)
    assert Coral()(torch.zeros(2), output, step([2, 2])).item() == pytest.approx(3.0)
    assert Coral(2.0)(torch.zeros(2), output, step([2, 2])).item() == pytest.approx(6.0)
    assert Coral()(torch.zeros(1), output, step([4])).item() == 0


def test_coral_of_three_is_the_mean_over_pairs():
    features = torch.tensor([[0.0], [2.0], [1.0], [3.0], [0.0], [4.0]])  # means 1, 2, 2 and variances 2, 2, 8
    output = Output(torch.zeros(6, 2), features=features)
    assert Coral()(torch.zeros(3), output, step([2, 2, 2])).item() == pytest.approx((1 + 0 + 1 + 36 + 36) / 3)


def test_coral_needs_two_samples():
    with pytest.raises(MedicError, match=naming("samples task")):
        Coral()(torch.zeros(2), Output(torch.zeros(2, 2), features=torch.zeros(2, 1)), step([1, 1]))


ZERO_HEAD = Output(torch.zeros(4, 2), features=torch.tensor([[1.0], [3.0], [1.0], [1.0]]))


def test_fishr():
    penalty = Fishr(weight=1.0, anneal=0, ema=0.95)
    two = step([2, 2], [0, 0, 0, 1])
    assert penalty(torch.zeros(2), ZERO_HEAD, two).item() == pytest.approx(0.0078125)
    variances = penalty.variances / 0.05  # (class, feature and bias)
    assert variances[0].tolist() == [pytest.approx([0.25, 0.0])] * 2
    assert variances[1].tolist() == [pytest.approx([0.25, 0.25])] * 2
    assert penalty(torch.zeros(2), ZERO_HEAD, two).item() == pytest.approx(0.0297070, abs=5e-8)


def test_fishr_keeps_averages_before_it_counts():
    early, always = Fishr(2.0, anneal=1, ema=0.9), Fishr(2.0, anneal=0, ema=0.9)
    two = step([2, 2], [0, 0, 0, 1])
    first, second = (early(torch.zeros(2), ZERO_HEAD, two).item() for _ in range(2))
    always(torch.zeros(2), ZERO_HEAD, two)
    assert first == 0
    assert second == always(torch.zeros(2), ZERO_HEAD, two).item()
    assert (early.restart_step, always.restart_step) == (1, None)


def test_fishr_variance_is_that_of_single_gradients():
    """Of a head with weights, by autograd, sample by sample."""
    torch.manual_seed(0)
    head, features, y = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 1])
    single = []
    for z, label in zip(features, y, strict=True):
        loss = nn.functional.cross_entropy(head(z)[None], label[None])
        weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
        single.append(torch.cat([weight, bias[:, None]], dim=1))
    penalty = Fishr(ema=0.0)
    penalty(torch.zeros(1), Output(head(features), features=features), step([5], y.tolist()))
    assert torch.allclose(penalty.variances[0], torch.stack(single).var(0, correction=0), atol=1e-14)


def aligned(penalty):
    return penalty(torch.zeros(2), ZERO_HEAD, step([2, 2], [0, 0, 0, 0])).item()


def test_hgp():
    assert aligned(Hgp(alpha=1.0, beta=0.0)) == pytest.approx(3.5390625)
    assert aligned(Hgp(alpha=0.0, beta=1.0)) == pytest.approx(0.125)


def test_hutchinson_exact():
    assert aligned(Hutchinson(alpha=1.0, beta=0.0)) == pytest.approx(0.5)
    assert aligned(Hutchinson(alpha=0.0, beta=1.0)) == pytest.approx(0.125)


def test_hutchinson_probes_estimate_the_diagonal():
    """The first task of the specification: diagonal (1.25, 0.25), and variances 2.0625 and 0.5625 of a probe."""
    torch.manual_seed(0)
    sample = (torch.full((2, 2), 0.5), None, torch.tensor([[1.0, 1.0], [3.0, 1.0]]))
    probes = torch.stack([Hutchinson(probes=1).curvature([sample], torch.zeros(2, 2)) for _ in range(4000)])
    assert probes.mean(0).tolist() == [pytest.approx([1.25, 0.25], abs=0.1)] * 2
    assert probes.var(0).tolist() == [pytest.approx([2.0625, 0.5625], rel=0.1)] * 2


class Head(nn.Module):
    """A linear head on inputs that are features already."""

    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        return self.classify(x)

    def classify(self, features):
        return Output(self.linear(features), features=features)


@pytest.mark.parametrize("penalty", [Hgp(1.0, 0.0), Hutchinson(1.0, 0.0)])
def test_hessian_penalties_against_autograd(penalty):
    """The Hessian of the mean loss of every task by its own weights, in full."""
    torch.manual_seed(0)
    model, x, y = Head(2, 3), torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 1])
    weights = torch.cat([model.linear.weight, model.linear.bias[:, None]], dim=1).detach()
    extended = torch.cat([x, torch.ones(6, 1)], dim=1)

    def loss(flat, part):
        return nn.functional.cross_entropy(extended[part] @ flat.view(3, 3).T, y[part])

    def curvature(parts):
        def mean(flat):
            return torch.stack([loss(flat, part) for part in parts]).mean()

        flat = weights.reshape(-1)
        hessian = torch.autograd.functional.hessian(mean, flat)
        gradient = torch.autograd.functional.jacobian(mean, flat)
        return hessian @ gradient if isinstance(penalty, Hgp) else hessian.diagonal()

    tasks = [slice(0, 3), slice(3, 6)]
    expected = torch.stack([(curvature([t]) - curvature(tasks)).square().sum() for t in tasks]).mean()
    cost = penalty(torch.zeros(2), model(x), step([3, 3], y.tolist(), x))
    assert cost.item() == pytest.approx(expected.item(), rel=1e-10)


@pytest.mark.parametrize(("positive", "negative", "expected"), [(0.7, 0.2, 0.01), (0.8, 0.2, 0.0)])
def test_balance(positive, negative, expected):
    odds = torch.tensor([positive, negative]).logit()[:, None]
    ova = torch.stack([torch.zeros(2, 1), odds], dim=1)
    output = Output(torch.zeros(2, 2), torch.cat([ova, -ova], dim=2))  # the other class mirrors it
    for weight in (1.0, 3.0):
        cost = Balance(weight)(torch.zeros(1), output, step([2], [0, 1]))
        assert cost.item() == pytest.approx(weight * expected, abs=1e-15)


def test_balance_leaves_out_classes_on_one_side():
    torch.manual_seed(0)
    ova = torch.randn(3, 2, 2)
    assert Balance()(torch.zeros(1), Output(torch.zeros(3, 2), ova), step([3], [1, 1, 1])).item() == 0


def test_balance_needs_a_binary_head():
    with pytest.raises(MedicError, match=naming("one-vs-all head")):
        Balance()(torch.zeros(1), Output(torch.zeros(1, 2)), step([1]))


def test_percentile():
    values = torch.tensor([[0.3, 0.1, 0.2], [0.0, 1.0, 5.0]])
    assert percentile(values, 2 / 3).squeeze(1).tolist() == pytest.approx([0.2333333, 2.3333333], abs=5e-8)
    assert torch.equal(percentile(values, 0.37), values.quantile(0.37, dim=1, keepdim=True))
    assert percentile(values, 1.0).squeeze(1).tolist() == [0.3, 5.0]


def test_rsc():
    """Samples that lose [0.3, 0.1, 0.2] of their confidence: the first is muted, and of it the first feature."""
    model = Head(3, 2)
    with torch.no_grad():
        model.linear.weight.copy_(torch.tensor([[0.3, 0.1, 0.2], [0.0, 0.0, 0.0]]))
        model.linear.bias.zero_()
    x = torch.tensor([[9.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    output = Rsc()(model, model(x), step([3], [0, 0, 0], x))
    assert output.features.tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]]
    assert output.logits[0, 0].item() == pytest.approx(0.3)


def test_rsc_trains_what_is_left():
    torch.manual_seed(0)
    model, x = Head(3, 2), torch.randn(4, 3)
    Joint()(model, [step([4], [0, 1, 0, 1], x)], objective(ce, change=Rsc()))
    muted = Rsc()(model, model(x), step([4], [0, 1, 0, 1], x)).features
    reference = nn.functional.cross_entropy(model.linear(muted), torch.tensor([0, 1, 0, 1]))
    assert torch.allclose(model.linear.weight.grad, torch.autograd.grad(reference, model.linear.weight)[0])


def test_rsc_needs_heads():
    with pytest.raises(MedicError, match="classify"):
        Rsc()(nn.Linear(1, 2), Output(torch.zeros(1, 2), features=torch.zeros(1, 1)), step([1]))


class Vector(nn.Module):
    """A model that is its weights; the loss of sample i is their product with x_i."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return Output((x @ self.weight)[:, None])


def masked(strategy, *gradients):
    """What a strategy makes of tasks with these gradients."""
    model = Vector(len(gradients[0]))
    steps = [Step(torch.tensor([g]), torch.zeros(1, dtype=torch.int64), (1,)) for g in gradients]
    strategy(model, steps, objective(lambda output, y: output.logits[:, 0]))
    return model.weight.grad.tolist()


def test_and_mask():
    gradient = masked(AndMask(1.0), [1.0, -2.0, 3.0, 0.5], [2.0, 1.0, 1.0, 0.5])
    assert gradient == pytest.approx([2.0, 0.0, 2.6666667, 0.6666667], abs=5e-8)


def test_and_mask_of_three_agrees_despite_rounding():
    assert masked(AndMask(1.0), [1.0, 1.0], [2.0, -1.0], [3.0, 1.0]) == pytest.approx([4.0, 0.0])
    assert masked(AndMask(0.0), [1.0, 1.0], [2.0, -1.0], [3.0, 1.0]) == pytest.approx([2.0, 1 / 3])


def test_and_mask_that_masks_all_gives_zero():
    assert masked(AndMask(1.0), [1.0], [-1.0]) == [0.0]


def test_and_mask_splits_steps_into_tasks():
    model, one = Vector(2), Vector(2)
    x, y, loss = torch.tensor([[1.0, 1.0], [2.0, -1.0]]), torch.zeros(2, dtype=torch.int64), lambda o, y: o.logits[:, 0]
    AndMask()(model, [Step(x, y, (1, 1))], objective(loss))
    AndMask()(one, [Step(x[:1], y[:1], (1,)), Step(x[1:], y[1:], (1,))], objective(loss))
    assert torch.equal(model.weight.grad, one.weight.grad)


def test_sand_mask():
    gradient = masked(SandMask(tau=0.5, k=1.0), [1.0, -2.0, 2.0], [3.0, 1.0, 2.0])
    assert gradient == pytest.approx([1.1804080, 0.0, 4.8195920], abs=5e-8)


def test_sand_mask_of_one_task_is_its_gradient():
    assert masked(SandMask(), [1.0, -2.0]) == pytest.approx([1.0, -2.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AndMask(1.5), "tau 1.5"),
        (lambda: SandMask(tau=1.0), "tau 1 0"),
        (lambda: SandMask(k=0.0), "k 0"),
    ],
)
def test_masks_refuse_numbers(make, message):
    with pytest.raises(MedicError, match=naming(message)):
        make()


class Stage(nn.Module):
    """A model whose one map is its input times a weight."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))
        self.tapped = False

    def tap(self, always=False):
        self.tapped = True
        return (1,)

    def forward(self, x):
        maps = self.scale * x
        return Output(maps.flatten(1), features=maps.flatten(1), stages=(maps,) if self.tapped else None)


def test_miro():
    """One map (1, 2) where it was (0, 0), variance 0.1."""
    model, penalty = Stage(), Miro(weight=0.1)
    penalty.prepare(model, Setup())
    x = torch.tensor([1.0, 2.0]).view(1, 1, 1, 2)
    with torch.no_grad():
        model.scale.fill_(1.0)
    output = model(x)
    cost = penalty(torch.zeros(1), output, step([1], x=x))
    assert penalty.spreads[0].item() == pytest.approx(-2.2522735, abs=5e-8)
    assert cost.item() == pytest.approx(1.1348707, abs=5e-7)
    (gradient,) = torch.autograd.grad(cost / 0.1, output.stages[0])
    assert gradient.flatten().tolist() == pytest.approx([5.0, 10.0])


def test_miro_begins_where_the_model_is_in_bf16_too():
    model = Classifier(create_backbone("resnet10t"), 2)
    loss = objective(ce, penalties=[Miro()])
    loss.prepare(model, Setup())
    model.eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        output = loss.outputs(model, step([2], [0, 1], x))
        with torch.autocast("cpu", enabled=False):
            cost = loss.penalties[0](torch.zeros(1), output, step([2], [0, 1], x))
    nothing = 0.1 * sum(spread.exp().log1p().add(1e-5).log().mean() / 2 for spread in loss.penalties[0].spreads)
    torch.testing.assert_close(cost, nothing, rtol=1e-6, atol=0)


def test_miro_trains_its_variances_and_leaves_the_reference():
    model, loss = Stage(), objective(ce, penalties=[Miro()])
    loss.prepare(model, Setup())
    x = torch.randn(3, 1, 1, 2)
    Joint()(model, [step([3], [0, 1, 0], x)], loss)
    (penalty,) = loss.penalties
    assert penalty.spreads[0].grad.abs().item() > 0
    assert not any(parameter.requires_grad for parameter in penalty.reference.parameters())
    assert penalty.lr_scale == 10


def test_miro_refuses_a_model_without_stages():
    with pytest.raises(MedicError, match=naming("Linear tap")):
        Miro().prepare(nn.Linear(1, 2), Setup())
    with pytest.raises(MedicError, match=naming("prepare")):
        Miro()(torch.zeros(1), Output(torch.zeros(1, 2)), step([1]))


def test_transport_of_orthogonal_features():
    output = Output(torch.zeros(2, 2), features=torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
    assert Transport(1.0)(torch.zeros(1), output, step([2], [0, 1])).item() == pytest.approx(0.135335, abs=5e-7)


def test_transport_leaves_out_classes_that_are_not_there():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    output = Output(torch.zeros(3, 4), features=features)
    pairs = [2.0, 4.0, 2.0]  # squared distances of classes 0-1, 0-3, 1-3
    expected = torch.tensor(pairs).neg().exp().mean().item()
    assert Transport(1.0)(torch.zeros(1), output, step([3], [0, 1, 3])).item() == pytest.approx(expected)
    assert Transport(1.0)(torch.zeros(1), output, step([3], [1, 1, 1])).item() == 0


def test_transport_plan_has_its_marginals():
    torch.manual_seed(0)
    cost = torch.rand(5, 5)
    rows, columns = torch.tensor([[1, 1, 0, 0, 0]]).bool(), torch.tensor([[0, 0, 1, 1, 1]]).bool()
    plan = transport_plan(cost, rows, columns)[0]
    assert plan.sum(0).tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3])
    assert plan.sum(1).tolist() == pytest.approx([0.5, 0.5, 0, 0, 0], abs=1e-6)


def test_transport_pushes_classes_apart():
    torch.manual_seed(0)
    features = torch.randn(6, 3, requires_grad=True)
    one = step([6], [0, 0, 1, 1, 2, 2])
    near = Transport()(torch.zeros(1), Output(torch.zeros(6, 3), features=features), one)
    (gradient,) = torch.autograd.grad(near, features)
    moved = features.detach() - 0.5 * gradient
    assert Transport()(torch.zeros(1), Output(torch.zeros(6, 3), features=moved), one) < near
