"""CIRL against its closed forms: spectra, factorisation, masks, and who is trained by what."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from medic.errors import MedicError
from medic.objectives import Rsc, Setup, ce
from medic.strategies import Joint
from medic.systems.cirl import Cirl, factorisation, largest_draw, mix_amplitudes, quantised, ramped, random_pairs
from medic.tasks import Step
from medic.utils.outputs import Output
from tests.messages import naming

pytestmark = pytest.mark.usefixtures("double")

SETUP = Setup(tasks=2, images=6, epoch=2, shape=(2, 5, 4), mean=(0.5, 0.4), std=(0.25, 0.5))


class Model(nn.Module):
    """Seven features of images of 2 × 5 × 4, and three classes."""

    features, classes = 7, 3

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(40, 7), nn.BatchNorm1d(7), nn.Tanh())
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        return self.classify(self.backbone(x))

    def classify(self, features):
        return Output(self.head(features), features=features)


def step():
    """Two tasks, of two and of four images."""
    return Step(SETUP.to_inputs(torch.rand(6, 2, 5, 4)), torch.tensor([0, 1, 2, 0, 1, 2]), (2, 4))


def prepared(**numbers):
    """A model and its objective, whose network is ready."""
    model, objective = Model(), Cirl([ce], **numbers)
    objective.prepare(model, SETUP)
    objective.masker.make_optimizers()
    return model, objective


def turn(objective, model, count=1):
    """So many iterations, by their players alone."""
    for _ in range(count):
        objective(model, step())
        objective.masker.update(model, [])


class TestMixtures:
    def test_amplitudes_are_mixed_and_phases_stay(self):
        """Against the whole spectrum, of which an image has one half twice."""
        one, other, share = [*np.random.RandomState(0).rand(2, 3, 2, 5, 4).tolist(), [0.0, 0.3, 1.0]]
        mixture = mix_amplitudes(torch.tensor(one), torch.tensor(other), torch.tensor(share))
        a, b, λ = np.fft.fft2(one), np.fft.fft2(other), np.array(share)[:, None, None, None]
        expected = np.fft.ifft2(((1 - λ) * abs(a) + λ * abs(b)) * np.exp(1j * np.angle(a)))
        assert abs(expected.imag).max() < 1e-15
        assert mixture.numpy() == pytest.approx(expected.real, abs=1e-14)
        assert mixture[0].numpy() == pytest.approx(np.array(one[0]), abs=1e-14)

    def test_a_brighter_partner(self):
        """A constant image has one amplitude, its sum: it becomes as bright as the mixture of both."""
        one, other = torch.full((1, 1, 4, 4), 0.2), torch.full((1, 1, 4, 4), 0.6)
        assert mix_amplitudes(one, other, torch.tensor([0.25])).numpy() == pytest.approx(0.3)

    def test_pixels_are_those_of_bytes(self):
        pixels = torch.tensor([-0.1, 0.0, 0.9 / 255, 1.5 / 255, 254.99 / 255, 1.0, 3.0])
        assert (255 * quantised(pixels)).tolist() == pytest.approx([0, 0, 0, 1, 254, 255, 255])

    def test_pairs(self):
        """Everyone is the partner of its partner, with the same share; all pairs are as likely."""
        counts = torch.zeros(6, 6)
        for _ in range(500):
            partner, share = random_pairs(6, counts)
            assert torch.equal(partner[partner], torch.arange(6))
            assert torch.equal(share[partner], share)
            counts[torch.arange(6), partner] += 1
        assert counts.diagonal().sum() == 0
        assert (counts / 500 + 0.2 * torch.eye(6)).numpy() == pytest.approx(0.2, abs=0.07)

    @pytest.mark.parametrize("count", [1, 5])
    def test_one_of_an_odd_number_is_its_own_partner(self, count):
        partner, share = random_pairs(count, torch.zeros(()))
        assert torch.equal(partner[partner], torch.arange(count))
        paired = partner != torch.arange(count)
        assert paired.sum() == count - 1
        assert torch.equal(share[partner][paired], share[paired])

    def test_what_the_model_sees(self):
        """The images as they are, then their mixtures, with pixels that are bytes."""
        model, objective = prepared()
        batch = step()
        objective(model, batch)
        x, y = objective._seen[0]
        assert torch.equal(x[:6], batch.x)
        assert y.tolist() == 2 * batch.y.tolist()
        levels = 255 * SETUP.to_pixels(x[6:])
        assert (levels - levels.round()).abs().max() < 1e-9
        assert levels.min() > -1e-9
        assert levels.max() < 255 + 1e-9
        assert (x[6:] - x[:6]).flatten(1).abs().amax(1).min() > 0.02  # more than a byte's rounding


class TestFactorisation:
    def test_closed_form(self):
        features = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
        assert factorisation(features, features, 0.005).item() == pytest.approx(0.25125, abs=1e-6)
        assert factorisation(features, features, 0.0).item() == pytest.approx(0.25, abs=1e-6)

    def test_different_features(self):
        """By the definition, entry by entry, of features that are not alike."""
        one, other = torch.randn(2, 9, 4).unbind()
        total = 0.0
        for i in range(4):
            for j in range(4):
                a, b = one[:, i], other[:, j]
                c = ((a - a.mean()) / (a.std() + 1e-6) * (b - b.mean()) / (b.std() + 1e-6)).mean()
                total += (c - 1) ** 2 / 4 if i == j else 0.1 * c**2 / 12
        assert factorisation(one, other, 0.1).item() == pytest.approx(total.item(), rel=1e-12)

    def test_a_dead_feature_has_no_gradient(self):
        features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.5, 0.0]], requires_grad=True)
        factorisation(features, features.detach(), 0.005).backward()
        assert features.grad.isfinite().all()

    def test_ramp(self):
        factors = 5 * ramped(torch.arange(8), 5.0)
        assert factors.tolist() == pytest.approx([0.0337, 0.2038, 0.8265, 2.2466, 4.0937, 5, 5, 5], abs=5e-5)
        assert ramped(torch.tensor(0), 0.0).item() == 1


class TestDraws:
    def test_each_is_fed_with_the_one_before(self):
        """Without noise: softmax of twice the logits, then of twice that."""
        logits = torch.tensor([[0.0, np.log(3.0) / 2]])
        once = torch.tensor([[0.25, 0.75]])
        twice = (2 * once).softmax(1)
        assert largest_draw(logits, torch.zeros(1, 1, 2)).numpy() == pytest.approx(once.numpy())
        assert largest_draw(logits, torch.zeros(2, 1, 2)).numpy() == pytest.approx(torch.maximum(once, twice).numpy())

    def test_against_torch(self, monkeypatch):
        """The same noise in torch's own relaxed draw."""
        noise = torch.randn(4, 3, 5)
        left = iter(noise)
        monkeypatch.setattr(torch.Tensor, "exponential_", lambda self: self.copy_((-next(left)).exp()))
        drawn = logits = torch.randn(3, 5)
        mask = torch.zeros(3, 5)
        for _ in range(4):
            drawn = functional.gumbel_softmax(drawn, tau=0.5)
            mask = torch.maximum(mask, drawn)
        assert torch.allclose(largest_draw(logits, noise / 0.5), mask, rtol=1e-12)

    def test_gradient(self):
        logits, noise = torch.randn(2, 3, requires_grad=True), torch.randn(4, 2, 3)
        assert torch.autograd.gradcheck(lambda values: largest_draw(values, noise), logits)

    def test_the_noise_is_gumbels(self):
        """One draw of equal logits: each feature is the largest equally often, and as large as torch's own."""
        _, objective = prepared(share=1 / 7)
        objective.masker.network = nn.Identity()
        assert objective.masker.draws == 1
        mask = objective.masker(torch.zeros(40_000, 7))
        assert mask.sum(1).numpy() == pytest.approx(1.0)
        expected = functional.gumbel_softmax(torch.zeros(40_000, 7), tau=0.5)
        for quantile in (0.1, 0.5, 0.9):
            assert mask.quantile(quantile).item() == pytest.approx(expected.quantile(quantile).item(), rel=0.03)

    def test_how_many(self):
        assert [prepared(share=share)[1].masker.draws for share in (0.01, 0.6, 1.0)] == [1, 4, 7]


def reference(model, objective, batch, superior, inferior):
    """The risks of the tasks by the definition, on what the model has seen."""
    x, y = objective._seen[0]
    features = model(x).features
    losses = functional.cross_entropy(model.head(features * superior), y, reduction="none")
    losses = (losses + functional.cross_entropy(objective.inferior(features * inferior), y, reduction="none")) / 2
    first, second = losses.split(6)
    return [torch.cat([first[part], second[part]]).mean().item() for part in (slice(0, 2), slice(2, 6))], features


class TestRisk:
    def test_masks_are_ones_at_first(self):
        model, objective = prepared()
        batch = step()
        risk = objective(model, batch)
        expected, features = reference(model, objective, batch, 1.0, 1.0)
        assert risk.tasks.tolist() == pytest.approx(expected, rel=1e-12)
        penalty = 5 * np.exp(-5) * factorisation(features[:6], features[6:], 0.005).item()
        assert risk.penalty.item() == pytest.approx(penalty, rel=1e-12)

    def test_then_features_are_shared_out(self, monkeypatch):
        model, objective = prepared(warmup=1.0)
        mask = torch.rand(12, 7)
        turn(objective, model, 2)  # an epoch
        monkeypatch.setattr(objective.masker, "forward", lambda features: mask)
        batch = step()
        risk = objective(model, batch)
        expected, features = reference(model, objective, batch, mask, 1 - mask)
        assert risk.tasks.tolist() == pytest.approx(expected, rel=1e-12)
        penalty = 5 * np.exp(-5 * 0.8**2) * factorisation(features[:6], features[6:], 0.005).item()
        assert risk.penalty.item() == pytest.approx(penalty, rel=1e-12)

    def test_epochs(self, monkeypatch):
        """Six of two iterations with masks of 1; the factor of the penalty changes once an epoch."""
        model, objective = prepared(weight=1.0)
        seen = []
        monkeypatch.setattr(
            objective, "_losses", lambda m, f, y, a, b: (seen.append(bool((a == 1).all())), (f.sum(1), f.sum(1)))[1]
        )
        monkeypatch.setattr("medic.systems.cirl.factorisation", lambda one, other, off: one.new_ones(()))
        monkeypatch.setattr(objective.masker, "_contest", lambda m: sum(p.sum() for p in objective.masker.parameters()))
        factors = []
        for _ in range(14):
            factors.append(objective(model, step()).penalty.item())
            objective.masker.update(model, [])
        assert seen == 12 * [True] + 2 * [False]
        assert factors == pytest.approx(np.exp(-5 * (1 - np.arange(7).clip(max=5).repeat(2) / 5) ** 2).tolist())

    def test_logits_are_of_the_images_in_their_order(self):
        model, objective = prepared()
        model.backbone[2] = nn.Identity()  # so that no image depends on another
        batch = step()
        assert torch.allclose(objective(model, batch).logits, model(batch.x).logits)

    def test_penalties_are_added(self):
        model, plain = prepared()
        more = Cirl([ce], penalties=[lambda tasks, output, step: 7 + 0 * output.features[: len(step.y)].sum()])
        more.prepare(model, SETUP)
        more.load_state_dict(plain.state_dict())
        batch = step()
        penalties = []
        for objective in (plain, more):
            torch.manual_seed(1)
            penalties.append(objective(model, batch).penalty.item())
        assert penalties[1] - penalties[0] == pytest.approx(7)


class TestTurns:
    def test_the_model_and_the_other_head_are_trained_together(self):
        model, objective = prepared(warmup=0.0)
        Joint()(model, [step()], objective)
        trained = [model.backbone[1].weight, *model.head.parameters(), *objective.inferior.parameters()]
        assert all(p.grad.abs().max() > 1e-6 for p in trained)
        assert all(p.grad is None for p in objective.masker.parameters())
        ((own, rate),) = objective.parameter_groups()
        assert {id(p) for p in own} == {id(p) for p in objective.inferior.parameters()}
        assert rate == 10

    def test_the_masker_alone_moves_in_its_turn(self):
        model, objective = prepared()
        objective(model, step())
        before = {name: value.clone() for name, value in objective.state_dict().items()}
        weights = [p.clone() for p in model.parameters()]
        count = model.backbone[2].num_batches_tracked.item()
        objective.masker.update(model, [])
        after = objective.state_dict()
        moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
        assert {name for name, _ in objective.named_parameters() if name.startswith("masker")} <= moved
        assert not {name for name in moved if not name.startswith("masker.")}
        assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
        assert all(p.grad is None for p in [*model.parameters(), *objective.parameters()])
        assert model.backbone[2].num_batches_tracked.item() == count + 1  # a pass in training mode
        assert objective.masker.turns.item() == 1

    def test_its_update(self):
        """The first step of SGD with Nesterov's momentum: 1.9 times the gradient, with the decay."""
        model, objective = prepared()
        objective(model, step())
        x, y = objective._seen[0]
        masker = objective.masker
        parameters = list(masker.parameters())
        torch.manual_seed(3)
        features = model(x).features.detach()
        mask = masker(features)
        better = functional.cross_entropy(model.head(features * mask), y)
        worse = functional.cross_entropy(objective.inferior(features * (1 - mask)), y)
        gradients = torch.autograd.grad(0.5 * better - 0.5 * worse, parameters)
        expected = [p - 1e-2 * 1.9 * (g + 5e-4 * p) for p, g in zip(parameters, gradients, strict=True)]
        assert max(gradient.abs().max() for gradient in gradients) > 1e-4
        torch.manual_seed(3)
        masker.update(model, [])
        for parameter, wanted in zip(parameters, expected, strict=True):
            assert torch.allclose(parameter, wanted, atol=1e-12)

    def test_several_steps_are_one_turn(self):
        """What was seen of a step last is what the masker meets."""
        model, objective = prepared()
        batch = step()
        for index in (0, 1, 1):
            objective(model, Step(batch.x, batch.y, batch.sizes, index=index))
        assert len(objective._seen) == 2
        objective.masker.update(model, [])
        assert not objective._seen
        assert objective.masker.turns.item() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cirl([ce], share=0.0), "share 0"),
        (lambda: Cirl([ce], share=1.5), "share 1.5"),
        (lambda: Cirl([ce], warmup=-1.0), "warmup -1"),
        (lambda: Cirl([ce], passes="task"), "--method cirl"),
        (lambda: Cirl([ce], change=Rsc()), "--method cirl"),
        (lambda: Cirl([ce]).prepare(Model(), Setup(images=1)), "images 1"),
        (lambda: Cirl([ce])(Model(), step()), "prepare"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(MedicError, match=naming(message)):
        make()
