"""ARPL with confusing samples, against the formulas of its publication."""

import copy
import math

import pytest
import torch
from torch import nn

from medic.errors import MedicError
from medic.models import Backbone, Classifier, Preprocessing
from medic.objectives import Objective, Setup
from medic.objectives.penalties.coral import Coral
from medic.strategies import Joint, TwoStep
from medic.systems.arpl import Arpl, ConfusingSamples, Reciprocal, batch_norms, peakedness, with_norms
from medic.tasks import Step
from medic.training.precision import Bf16Weights
from medic.utils.outputs import Output
from tests.built import built, plan_of
from tests.messages import naming

pytestmark = pytest.mark.usefixtures("double")

SETUP = Setup(shape=(3, 32, 32), mean=(0.2, 0.3, 0.4), std=(0.5, 0.6, 0.7))


def of(*rows):
    return Output(torch.zeros(len(rows), len(rows[0])), distance=torch.tensor(rows, requires_grad=True))


def test_the_numbers_of_the_publication():
    head = Reciprocal(2, 2)
    with torch.no_grad():
        head.points.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    output = head(torch.tensor([[1.0, 0.0]]))
    assert Arpl()(output, torch.tensor([0])).item() == pytest.approx(0.463262, abs=5e-7)
    assert peakedness(output).item() == pytest.approx(0.5)  # distances 0.5 and 0.5, though the logits differ


def test_e_is_least_where_all_distances_are_equal():
    for classes in (2, 3, 7):
        output = of([4.0] * classes)
        assert peakedness(output).item() == pytest.approx(1 / classes)
        (gradient,) = torch.autograd.grad(peakedness(output), output.distance)
        assert gradient.abs().max() < 1e-15
        assert peakedness(of(torch.randn(classes).tolist())) > 1 / classes


def test_e_of_some_distances():
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert peakedness(of([0.0, math.log(3)])).item() == pytest.approx(math.exp(-entropy))
    both = peakedness(of([0.0, math.log(3)], [1.0, 1.0])).item()  # the exponential of a mean, no mean of exponentials
    assert both == pytest.approx(math.exp(-(entropy + math.log(2)) / 2))


def test_e_of_distances_far_apart():
    output = of([0.0, 1e4, -1e4])
    assert peakedness(output).item() == pytest.approx(1.0)
    assert torch.autograd.grad(peakedness(output), output.distance)[0].isfinite().all()


def test_the_radius_does_not_matter():
    head, features = Reciprocal(4, 3), torch.randn(5, 4)
    before = peakedness(head(features))
    with torch.no_grad():
        head.radius.fill_(2.5)
    assert peakedness(head(features)).item() == pytest.approx(before.item())
    assert torch.autograd.grad(peakedness(head(features)), head.radius)[0].abs() < 1e-15


class Normed(nn.Module):
    """Features (N, 4) of images, with batch norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 8, stride=8), nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


def prepared(model, penalties=(), **numbers):
    """Return an objective with small adversaries that have their optimizers."""
    objective = ConfusingSamples([Arpl()], penalties=penalties, **numbers)
    objective.prepare(model, SETUP)
    adversaries, pixels = objective.adversaries, 3 * 32 * 32
    adversaries.generator = nn.Sequential(nn.Linear(100, pixels), nn.Sigmoid(), nn.Unflatten(1, (3, 32, 32)))
    adversaries.discriminator = nn.Sequential(Normed(), nn.Linear(4, 1), nn.Flatten(0))
    adversaries.make_optimizers()
    return objective


def made(**numbers):
    """A model with batch norm, a prepared objective, and a step."""
    model = Classifier(Backbone(Normed(), 4, Preprocessing(SETUP.mean, SETUP.std, 32)), 3, "reciprocal")
    objective = prepared(model, **numbers)
    step = Step(SETUP.to_inputs(torch.rand(6, 3, 32, 32)), torch.tensor([0, 1, 2, 0, 1, 2]), (6,))
    return model, objective, step


def snapshot(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(before, after):
    return all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def auxiliary(model, objective):
    """A copy of the model that has the auxiliary batch norm for its own."""
    other = copy.deepcopy(model)
    other.backbone.norm = copy.deepcopy(objective.norms[0])
    return other


def test_a_turn_is_one_update_of_each():
    """Against the publication's binary cross-entropies of sigmoids, with optimizers of torch."""
    model, objective, step = made(beta=0.7, gan_lr=3e-4)
    adversaries = objective.adversaries
    generator, discriminator = copy.deepcopy(adversaries.generator), copy.deepcopy(adversaries.discriminator)
    before, own, fakes = snapshot(model), auxiliary(model, objective), torch.get_rng_state()
    adversaries.update(model, [step])

    torch.set_rng_state(fakes)
    of_d, of_g = (torch.optim.Adam(n.parameters(), 3e-4, betas=(0.5, 0.999)) for n in (discriminator, generator))
    bce, one, zero = nn.functional.binary_cross_entropy, torch.ones(6), torch.zeros(6)
    fake, real = generator(torch.randn(6, 100)), SETUP.to_pixels(step.x)
    assert 0 <= real.min() < real.max() <= 1
    loss = bce(discriminator(real).sigmoid(), one) + bce(discriminator(fake.detach()).sigmoid(), zero)
    loss.backward()
    of_d.step()
    loss = bce(discriminator(fake).sigmoid(), one) + 0.7 * peakedness(own(SETUP.to_inputs(fake)))
    loss.backward()
    of_g.step()

    for mine, theirs in ((adversaries.generator, generator), (adversaries.discriminator, discriminator)):
        for (name, one), other in zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9, msg=name)
    assert same(before, model.state_dict())
    assert all(parameter.grad is None for parameter in [*model.parameters(), *objective.parameters()])


def test_a_turn_for_every_step():
    model, objective, step = made()
    objective.adversaries.update(model, [step, step])
    counters = {int(state["step"]) for o in objective.adversaries.optimizers for state in o.state.values()}
    assert counters == {2}


def test_the_model_descends_the_risk_and_e_of_fresh_images():
    model, objective, step = made(beta=0.7)
    plain, own, generator = copy.deepcopy(model), auxiliary(model, objective), objective.adversaries.generator
    start = torch.get_rng_state()
    update = Joint()(model, [step], objective)

    torch.set_rng_state(start)
    risk = Objective([Arpl()])(plain, step).tasks.mean()
    confidence = peakedness(own(SETUP.to_inputs(copy.deepcopy(generator)(torch.randn(6, 100)).detach())))
    (risk + 0.7 * confidence).backward()
    assert update.loss.item() == pytest.approx((risk + 0.7 * confidence).item())
    shared = [(p, q, r) for p, q, r in zip(model.parameters(), plain.parameters(), own.parameters(), strict=True)]
    norm = {id(parameter) for parameter in model.backbone.norm.parameters()}
    for parameter, real, fake in shared:
        if id(parameter) in norm:  # the model's own sees real images alone
            torch.testing.assert_close(parameter.grad, real.grad)
        else:
            torch.testing.assert_close(parameter.grad, real.grad + (0 if fake.grad is None else fake.grad))
    for mine, fake in zip(objective.norms[0].parameters(), own.backbone.norm.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, fake.grad)
        assert mine.grad.abs().max() > 0
    assert all(parameter.grad is None for parameter in objective.adversaries.parameters())


def test_statistics_of_real_and_fake_images_are_apart():
    model, objective, step = made()
    plain, start = copy.deepcopy(model), snapshot(objective.norms)
    plain(step.x)
    objective(model, step)
    objective.adversaries.update(model, [step])
    assert same(plain.state_dict(), model.state_dict())
    assert not torch.equal(start["0.running_mean"], objective.norms[0].running_mean)
    assert objective.norms[0].num_batches_tracked == 2


def test_a_frozen_batch_norm_stays():
    model, objective, step = made()
    model.norms = "frozen"
    model.train()
    before = snapshot(objective.norms)
    objective(model, step)
    assert same(before, objective.norms.state_dict())


def test_what_is_trained_with_the_model():
    model, objective, _ = made()
    ((group, rate),) = objective.parameter_groups()
    assert rate == 1
    assert {id(p) for p in group} == {id(p) for p in objective.norms.parameters()}
    assert objective.auxiliary == (objective.adversaries,)
    assert all(torch.equal(p, q) for p, q in zip(group, model.backbone.norm.parameters(), strict=True))


def test_more_penalties_add_up():
    model, objective, step = made(beta=0.7)
    two = Step(step.x, step.y, (3, 3))
    both = prepared(model, [Coral()], beta=0.7)
    both.load_state_dict(objective.state_dict())
    start = torch.get_rng_state()
    alone = objective(model, two).penalty
    torch.set_rng_state(start)
    combined = both(model, two).penalty
    coral = Objective([Arpl()], [Coral()])(model, two).penalty
    assert combined.item() == pytest.approx((alone + coral).item())


def test_a_network_without_batch_norm_needs_nothing():
    backbone = Backbone(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)), 4, Preprocessing((), (), 32))
    model = Classifier(backbone, 3, "reciprocal")
    objective = ConfusingSamples([Arpl()])
    objective.prepare(model, SETUP)
    assert not list(objective.norms)
    assert objective.parameter_groups() == []
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(with_norms(model, objective.norms, x).logits, model(x).logits)


def test_second_derivatives_reach_the_copies():
    """An inner step moves the copies too, by names that a functional call replaces."""
    model, objective, step = made()
    TwoStep(second_order=True)(model, [step, step], objective)
    assert all(parameter.grad is not None for parameter in objective.norms.parameters())
    assert all(parameter.grad is None for parameter in objective.adversaries.parameters())


def test_lowered_to_bf16():
    """Around the model, the wrapper of training in bf16: the same numbers as autocast alone."""
    torch.set_default_dtype(torch.float32)
    model, objective, step = made()
    start, outcomes = torch.get_rng_state(), []
    for wrapped in (False, True):
        network = copy.deepcopy(model)
        mine = prepared(network)
        mine.load_state_dict(objective.state_dict())
        outer = Bf16Weights(network, network.backbone, compiled=False) if wrapped else network
        torch.set_rng_state(start)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            mine.adversaries.update(outer, [step])
            Joint()(outer, [step], mine)
        gradients = {name: p.grad for name, p in network.named_parameters()}
        outcomes.append(({**network.state_dict(), **mine.state_dict()}, gradients))
    (state, gradients), (lowered, lowered_gradients) = outcomes
    assert same(state, lowered)
    assert same(gradients, lowered_gradients)
    assert not torch.equal(state["backbone.norm.running_mean"], state["norms.0.running_mean"])


@pytest.mark.parametrize(("size", "way"), [(224, 64), (28, 32)])
def test_other_sizes_are_refused(size, way):
    message = f"32 64 {size} --image-size {way} --method arpl"
    with pytest.raises(MedicError, match=naming(message)):
        ConfusingSamples([Arpl()]).prepare(nn.Flatten(), Setup(shape=(3, size, size)))


def test_what_is_not_prepared_or_has_no_points_is_explained():
    model, _, step = made()
    with pytest.raises(MedicError, match=naming("prepare")):
        ConfusingSamples([Arpl()])(model, step)
    with pytest.raises(MedicError, match=naming("--head reciprocal")):
        peakedness(Output(torch.zeros(1, 2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": "head"}, "'arpl-cs' backbone"),
        ({"compile": "on"}, "'arpl-cs' compile"),
        ({"head": "close"}, "head 'close' objective 'arpl-cs'"),
        ({"hparams": "gama=1"}, "'gama' 'arpl-cs'"),
    ],
)
def test_what_it_does_not_go_with(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(dataset=mini, method="arpl-cs", **settings)


def trainer(mini, **settings):
    made = built(dataset=mini, method="arpl-cs", batch_size=4, **settings)
    made.model.train()
    return made


@pytest.mark.slow
def test_a_run_with_batch_norm_resumes(mini):
    """The copies, their momentum, both networks and their Adams are in the checkpoint."""
    torch.set_default_dtype(torch.float32)
    first, second = (trainer(mini, backbone="test_resnet", hparams={"beta": 0.5}) for _ in range(2))
    assert first.objective.beta == 0.5
    assert len(first.objective.norms) == len(list(batch_norms(first.model))) > 10
    torch.manual_seed(1)
    first.step()
    state = copy.deepcopy(first.state_dict())
    first.step()
    second.load_state_dict(state)
    second.step()
    (one, other) = (each.state_dict() for each in (first, second))
    for part in ("model", "objective"):
        assert same(one[part], other[part])
    assert len(one["auxiliary"]) == 2
    for mine, theirs in zip(one["auxiliary"], other["auxiliary"], strict=True):
        assert all(same(mine["state"][index], theirs["state"][index]) for index in mine["state"])


@pytest.mark.slow
def test_it_trains_images_of_64_pixels(mini):
    torch.set_default_dtype(torch.float32)
    made = trainer(mini, backbone="resnet10t", image_size=64)
    assert made.objective.adversaries.generator(torch.randn(2, 100)).shape == (2, 3, 64, 64)
    assert all(math.isfinite(loss) for loss in made.step() + made.wait())
