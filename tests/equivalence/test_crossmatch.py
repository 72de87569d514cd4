"""CrossMatch against its closed forms: what it makes of images, and what it learns from them."""

import copy
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from medic.errors import MedicError
from medic.models import Classifier, create_backbone
from medic.objectives import Setup, ce, ova
from medic.objectives.losses import acceptance
from medic.runs.build import compiles
from medic.strategies import Joint, TwoStep
from medic.systems.crossmatch import CrossMatch, disagreement, openness
from medic.tasks import Step
from medic.utils.outputs import Output
from tests.built import plan_of
from tests.messages import naming

pytestmark = pytest.mark.usefixtures("double")


ZERO = Output(torch.zeros(1, 4), torch.zeros(1, 2, 4))
WIDE = {"mean": (0.5,), "std": (0.05,)}
"""Inputs between -10 and 10."""


def step(x, y):
    return Step(torch.tensor(x).view(-1, 1, 1, 1), torch.tensor(y), (len(y),))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class Line(nn.Module):
    """Images of one pixel x, which is the feature; logits (a x, -a x), one-vs-all log-odds (b x, 2 b x)."""

    def __init__(self, a=1.0, b=1.0):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(a)), nn.Parameter(torch.tensor(b))

    def forward(self, x):
        features = x.flatten(1)
        odds = self.b * features * torch.tensor([1.0, 2.0])
        logits = self.a * features * torch.tensor([1.0, -1.0])
        return Output(logits, torch.stack([torch.zeros_like(odds), odds], 1), features)


def made(images=1, shape=(1, 1, 1), model=None, **numbers):
    objective = CrossMatch([ce, ova], **numbers)
    objective.prepare(model or Line(), Setup(images=images, shape=shape, **WIDE))
    return objective


def test_losses_of_unknown_images():
    """Four classes, all logits 0, so that p = 1/4 and q = 1/2."""
    assert acceptance(ZERO).item() == pytest.approx(math.log(2))
    assert disagreement(ZERO).item() == pytest.approx(0.0625)
    assert openness(ZERO).item() == pytest.approx(math.log(4) - math.log(2))


def test_the_penalty():
    """Weights of 0 make all logits 0 everywhere: every term is known, for two classes."""
    objective, model = made(lam_n=2.0, lam_c=3.0), Line(0.0, 0.0)
    risk = objective(model, step([1.0], [0]))
    supervised = math.log(2) + 2 * math.log(2)
    assert risk.tasks.tolist() == pytest.approx([supervised])
    assert risk.penalty.item() == pytest.approx(supervised + 2 * math.log(2) + 3 * 0.0)
    model.a.data.fill_(1.0)  # p = (σ(2x), σ(-2x)) for the image, which stays at x = 1
    risk = made(lam_n=0.0, lam_c=3.0, eta=0.0)(model, step([1.0], [0]))
    p = sigmoid(2.0)
    assert risk.penalty.item() == pytest.approx(-math.log(p) + 2 * math.log(2) + 3 * (p - 0.5) ** 2)


def test_a_known_image_ascends_its_cross_entropy():
    """From x = 0: CE' = -2 σ(-2x), and the distance pulls back by 2 γ x."""
    eta, gamma = 0.1, 0.5
    known, _ = made(eta=eta, gamma=gamma, ascents=2).ascend(Line(), torch.zeros(1, 1, 1, 1), torch.tensor([0]))
    first = eta * -2 * sigmoid(0.0)
    second = first + eta * (-2 * sigmoid(-2 * first) - 2 * gamma * first)
    assert first == pytest.approx(-0.1)
    assert known.item() == pytest.approx(second)
    before, after = (math.log(1 + math.exp(-2 * x)) for x in (0.0, known.item()))
    assert after > before
    assert not known.requires_grad


def test_an_unknown_image_ascends_rejection_and_entropy():
    """From x = 0, where the entropy is largest: A' = -(σ(0) + 2 σ(0)) / 2 = -0.75; from x = 1 the entropy counts."""
    objective, y = made(eta=0.1, ascents=1), torch.tensor([0, 0])
    _, unknown = objective.ascend(Line(), torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), y)
    p = sigmoid(2.0)
    entropy = 2 * p * (1 - p) * math.log((1 - p) / p)  # dH/dx of p = σ(2x)
    rejection = -(sigmoid(1.0) + 2 * sigmoid(2.0)) / 2
    assert unknown.flatten().tolist() == pytest.approx([-0.075, 1 + 0.1 * (entropy + rejection)])


def test_the_distance_is_a_mean_over_features():
    class Twice(Line):
        def forward(self, x):
            output = super().forward(x)
            return output._replace(features=output.features.expand(-1, 2))

    x, y = torch.zeros(1, 1, 1, 1), torch.tensor([0])
    one, two = (made(ascents=3).ascend(model, x, y)[0].item() for model in (Line(), Twice()))
    assert one == pytest.approx(two)


def test_pixels_stay_in_their_range():
    model, x = Line(), torch.tensor([-9.9, 9.9]).view(2, 1, 1, 1)
    known, _ = made(eta=100.0, gamma=0.0).ascend(model, x, torch.tensor([0, 1]))
    assert known.flatten().tolist() == pytest.approx([-10.0, 10.0])


def test_pools_roll():
    """With no step size images stay, and a label is the whole part of its image: two of 32 a step, oldest first."""
    objective = made(images=32, eta=0.0)
    generated = []
    for turn in range(17):
        y = [turn % 2] * 4
        x = [y[0] + 0.01 * turn + 0.001 * n for n in range(4)]
        objective(Line(), step(x, y))
        generated += [objective.known.flatten()[2 * turn % 32 + n].item() for n in range(2)]
        assert all(value in x for value in generated[-2:])
        assert generated[-1] != generated[-2]
    assert objective.written.item() == 34
    assert objective.known.flatten().tolist() == [*generated[32:], *generated[2:32]]
    assert torch.equal(objective.known, objective.unknown)
    assert objective.labels.tolist() == [int(value) for value in objective.known.flatten()]


def test_only_what_is_there_counts():
    """One of eight images after the first step, and its loss is the penalty, whatever the others would give."""
    objective, model = made(images=8, eta=0.0, lam_n=0.0, lam_c=0.0), Line()
    risk = objective(model, step([0.5, 0.6, 0.7], [0, 1, 1]))
    output, label = model(objective.known[:1]), objective.labels[:1]
    assert objective.written.item() == 1
    assert risk.penalty.item() == pytest.approx((ce(output, label) + ova(output, label)).item())


def test_gradients_are_those_of_the_losses_with_constant_pools():
    torch.manual_seed(0)
    objective, model = made(images=4, lam_n=0.5, lam_c=2.0), Line(0.7, -0.4)
    batch = step([0.5, -1.0, 2.0, 0.1], [0, 1, 1, 0])
    for _ in range(4):
        objective(model, batch)
    Joint()(model, [batch], objective)
    gradients = [model.a.grad, model.b.grad]
    known, unknown = (model(pool.clone()) for pool in (objective.known, objective.unknown))
    supervised = [ce(o, y) + ova(o, y) for o, y in ((model(batch.x), batch.y), (known, objective.labels))]
    others = 0.5 * acceptance(unknown) + 2.0 * disagreement(unknown)
    expected = torch.autograd.grad(torch.stack([*supervised, others]).mean(1).sum(), [model.a, model.b])
    torch.testing.assert_close(gradients, list(expected))
    assert not objective.known.requires_grad


def test_the_penalty_joins_others():
    objective, batch = made(eta=0.0), step([1.0], [0])
    alone = objective(Line(), batch).penalty
    both = CrossMatch([ce, ova], penalties=[lambda tasks, output, step: tasks.mean()], eta=0.0)
    both.prepare(Line(), Setup(shape=(1, 1, 1), **WIDE))
    risk = both(Line(), batch)
    assert risk.penalty.item() == pytest.approx(alone.item() + risk.tasks.mean().item())


class Normed(nn.Module):
    """A model with batch norm, of which one part is frozen, and dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
        self.frozen, self.head = nn.BatchNorm1d(8), nn.Linear(8, 6)
        self.passes = []

    def forward(self, x):
        self.passes.append((self.body[2].training, self.frozen.training, len(x)))
        features = self.frozen(self.body(x))
        outputs = self.head(features)
        return Output(outputs[:, :2], outputs[:, 2:].view(-1, 2, 2), features)


def normed(images=16, **numbers):
    torch.manual_seed(0)
    model = Normed()
    model.frozen.eval()
    objective = made(images, (1, 2, 2), model, **numbers)
    return model, objective, Step(torch.randn(16, 1, 2, 2), torch.arange(16) % 2, (16,))


def test_batch_norm_sees_the_step_alone():
    """Neither making images nor learning from them moves running statistics, and every layer keeps its mode."""
    model, objective, batch = normed(ascents=3)
    objective(model, batch)
    plain, _, _ = normed()
    plain(batch.x)
    for (name, moved), expected in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(moved, expected), name
    assert model.body[2].num_batches_tracked.item() == 1
    assert [module.training for module in model.modules()] == [module.training for module in plain.modules()]
    assert model.body[2].track_running_stats
    # The step, three ascents of a known and an unknown image, and both pools.
    assert model.passes == [(True, False, 16), *[(False, False, 2)] * 3, (True, False, 32)]


def test_until_they_are_full_pools_are_normalised_with_images_of_the_step():
    """The one image that is there is met among the step's own, not among blank ones."""
    model, objective, batch = normed(eta=0.0, lam_n=0.0, lam_c=0.0)
    model.body[3].p = 0.0
    risk = objective(model, batch)
    pool = torch.cat([objective.known[:1], batch.x[1:], objective.unknown[:1], batch.x[1:]])
    output, label = model(pool), objective.labels[:1]
    first = output.map(lambda part: part[:1])
    assert risk.penalty.item() == pytest.approx((ce(first, label) + ova(first, label)).item())


def test_batch_norm_of_timm_keeps_its_statistics():
    torch.set_default_dtype(torch.float32)
    model = Classifier(create_backbone("resnet10t", None, 32), 3)
    objective = CrossMatch([ce, ova], ascents=1)
    objective.prepare(model, Setup(images=4))
    batch = Step(torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 0]), (4,))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    objective._renew(model, batch)
    objective._measure_pools(model, batch)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_pools_survive_a_checkpoint():
    model, objective, batch = normed()
    for _ in range(3):
        objective(model, batch)
    fresh = made(16, (1, 2, 2), model)
    fresh.load_state_dict(objective.state_dict())
    assert fresh.written.item() == 3
    risks = []
    for one in (objective, fresh):
        torch.manual_seed(7)
        risks.append(one(copy.deepcopy(model), batch).penalty.item())
    assert risks[0] == risks[1]


def test_pools_are_constants_of_a_second_order_step():
    """TwoStep differentiates through the weights, not through how images were made."""
    gradients = []
    for second_order in (True, False):
        torch.manual_seed(0)
        model, objective = Line(), made(images=2, eta=0.0)
        steps = [step([0.5, 0.2], [0, 1]), step([-0.3, 1.0], [1, 0])]
        TwoStep(lr=1e-9, second_order=second_order)(model, steps, objective)
        gradients.append([model.a.grad, model.b.grad])
    torch.testing.assert_close(*gradients)
    assert not objective.known.requires_grad


def test_nothing_is_asked_of_the_device():
    """Fake tensors have no values: what would wait for the device, or branch on what is there, raises."""
    with FakeTensorMode():
        model, objective = Normed(), made(16, (1, 2, 2))
        Joint()(model, [Step(torch.ones(16, 1, 2, 2), torch.ones(16).long(), (16,))], objective)
        with pytest.raises(RuntimeError, match="_local_scalar_dense"):
            objective.written.item()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"eta": -1.0}, "eta CrossMatch -1 0"),
        ({"gamma": math.inf}, "gamma CrossMatch inf"),
        ({"lam_n": math.nan}, "lam_n CrossMatch nan"),
        ({"ascents": 0}, "ascents CrossMatch 0 1"),
    ],
)
def test_numbers_are_refused(numbers, message):
    with pytest.raises(MedicError, match=naming(message)):
        CrossMatch([ce, ova], **numbers)


def test_what_it_needs_is_said():
    batch = step([1.0], [0])
    with pytest.raises(MedicError, match=naming("prepare")):
        CrossMatch([ce])(Line(), batch)

    class Bare(Line):
        without = "ova"

        def forward(self, x):
            return super().forward(x)._replace(**{self.without: None})

    model = Bare()
    objective = CrossMatch([ce])
    objective.prepare(model, Setup(shape=(1, 1, 1), **WIDE))
    with pytest.raises(MedicError, match=naming("one-vs-all head")):
        objective(model, batch)
    model.without = "features"
    with pytest.raises(MedicError, match=naming("features")):
        objective(model, batch)


def test_a_run_of_it(mini):
    settings = {"dataset": mini, "method": "crossmatch", "averaging": "none"}
    plan = plan_of(**settings, hparams="eta=0.5,ascents=3")
    assert plan.config.settings["hparams"] == {"lam_n": 1.0, "lam_c": 1.0, "eta": 0.5, "gamma": 1.0, "ascents": 3}
    assert (plan.config.model.head, plan.config.evaluation.score) == ("separate", "bcls")
    assert not compiles(plan, torch.device("cuda"))
    assert plan_of(**settings, head="shared").config.model.head == "shared"
    with pytest.raises(MedicError, match=naming("'crossmatch' backbone")):
        plan_of(**settings, tune="head")
    with pytest.raises(MedicError, match=naming("ascents 0")):
        plan_of(**settings, hparams="ascents=0")
