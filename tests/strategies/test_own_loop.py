"""A loop of one's own: losses of torch and functions as objectives, and mistakes that are a sentence."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import medic
from medic.errors import MedicError
from medic.strategies import AndMask, Trajectories
from tests.messages import naming

torch.manual_seed(0)
N = 36
Y, DOMAIN = torch.arange(N) % 6, torch.arange(N) // 12
X = torch.randn(N, 5)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))


def gradients(objective, strategy=None, model=None):
    """Return the gradients and risks of one iteration whose tasks differ in size."""
    model = model or network()
    x, y, domain = X[:31], Y[:31], DOMAIN[:31]
    update = (strategy or medic.MultiStep(1e-2))(model, medic.Grid(3, 3)(x, y, domain), objective)
    return [p.grad for p in model.parameters()], update.risks


def mean(logits, labels):
    return functional.cross_entropy(logits, labels)


class Mean(nn.Module):
    def forward(self, logits, labels):
        return -logits.log_softmax(1).gather(1, labels[:, None]).mean()


@pytest.mark.parametrize("strategy", [medic.Joint(), medic.MultiStep(1e-2), medic.MultiStep(1e-2, second_order=True)])
@pytest.mark.parametrize("loss", [
    nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none"), mean, Mean(),
    lambda logits, labels: functional.cross_entropy(logits, labels, reduction="none"),
    lambda output, labels: functional.cross_entropy(output.logits, labels),
    lambda output, labels: medic.ce(output, labels),
])  # fmt: skip
def test_a_loss_of_ones_own_is_computed_per_task(loss, strategy):
    expected, risks = gradients(medic.objective(medic.ce), strategy)
    own_gradients, own = gradients(medic.objective(loss), strategy)
    torch.testing.assert_close(own, risks)
    for one, other in zip(own_gradients, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_loss_of_torch_is_an_objective_by_itself():
    expected, risks = gradients(medic.objective(medic.ce))
    own_gradients, own = gradients(nn.CrossEntropyLoss())
    torch.testing.assert_close(own, risks)
    torch.testing.assert_close(own_gradients, expected)


def test_losses_of_both_kinds_add_up():
    _, one = gradients(medic.objective(medic.ce), medic.Joint())
    _, two = gradients(medic.objective(medic.ce, mean), medic.Joint())
    torch.testing.assert_close(two, 2 * one)


def test_the_weights_of_a_loss_are_computed_per_task():
    weight = torch.arange(1.0, 7)
    update = medic.Joint()(network(), steps := medic.Grid(3)(X, Y, DOMAIN), nn.CrossEntropyLoss(weight=weight))
    logits = [network()(task.x) for step in steps for task in step.tasks()]
    labels = [task.y for step in steps for task in step.tasks()]
    expected = [functional.cross_entropy(*pair, weight=weight) for pair in zip(logits, labels, strict=True)]
    torch.testing.assert_close(update.risks, torch.stack(expected).detach())


@pytest.mark.parametrize(("make", "message"), [
    (lambda: medic.objective("ce"), "'ce' str medic.ce CrossEntropyLoss()"),
    (lambda: medic.objective(nn.CrossEntropyLoss), "CrossEntropyLoss class CrossEntropyLoss()"),
    (lambda: medic.objective([medic.ce, medic.ova]), "list objective(ce, ova)"),
    (lambda: medic.objective(nn.CrossEntropyLoss(reduction="sum")), "CrossEntropyLoss sums mean"),
    (lambda: medic.objective(medic.ce, penalties=lambda *_: 0), "penalties=[penalty]"),
    (lambda: medic.objective(medic.ce, penalties=["vrex"]), "penalty 'vrex' str"),
    (lambda: medic.objective(medic.ce, change=3), "change 3 int"),
])  # fmt: skip
def test_mistakes_of_an_objective(make, message):
    with pytest.raises(MedicError, match=naming(message)):
        make()


def untold(x, labels):
    return functional.cross_entropy(x.logits, labels) + x.features.mean()


WAYS = "fix the loss, or pass a function that takes (logits, labels) or (output, labels)"


@pytest.mark.parametrize(("loss", "message"), [
    (lambda logits, labels: logits, f"loss <lambda> returned a tensor of shape ({N}, 6) and dtype torch.float32: "
     f"expected one loss per sample, shape ({N},), or their mean, a scalar"),
    (lambda logits, labels: float(functional.cross_entropy(logits, labels)), "loss <lambda> returned a float: expected "
     f"one loss per sample, shape ({N},), or their mean, a scalar"),
    (lambda logits: logits, f"loss <lambda> failed on labels of shape ({N},) with logits of shape ({N}, 6) (TypeError: "
     f"<lambda>() takes 1 positional argument but 2 were given): {WAYS}"),
    (nn.MSELoss(), f"loss MSELoss failed on labels of shape ({N},) with logits of shape ({N}, 6) (RuntimeError: The "
     f"size of tensor a (6) must match the size of tensor b ({N}) at non-singleton dimension 1): {WAYS}"),
    (untold, f"loss untold failed on labels of shape ({N},) with an Output (AttributeError: 'NoneType' object has no "
     f"attribute 'mean') and with logits of shape ({N}, 6) (AttributeError: 'Tensor' object has no attribute "
     f"'logits'): {WAYS}"),
])  # fmt: skip
def test_mistakes_of_a_loss(loss, message):
    step = medic.Step(X, Y, (N,))
    with pytest.raises(MedicError) as raised:
        medic.objective(loss)(network(), step)
    assert str(raised.value) == message


@pytest.mark.parametrize("first", ["x: medic.Output", "x: 'Tensor'", "logits"])
def test_a_signature_that_tells_is_called_once(first):
    """An error of such a loss is its own: no second call hides it."""
    calls = []
    scope = {"medic": medic, "calls": calls}
    exec(
        f"def loss({first}, labels):\n    calls.append({first.partition(':')[0]})\n    raise ValueError('no scale')",
        scope,
    )
    with pytest.raises(MedicError, match=r"\(ValueError: no scale\): fix the loss, or pass a function"):
        medic.objective(scope["loss"])(network(), medic.Step(X, Y, (N,)))
    assert [type(call) for call in calls] == [medic.Output if "Output" in first else torch.Tensor]


STRATEGIES = (medic.Joint(), medic.MultiStep(1e-2), medic.TwoStep(1e-2), AndMask(), Trajectories(count=1))
STEPS = medic.Grid(3)(X, Y, DOMAIN)
LOSS = medic.objective(medic.ce)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(("arguments", "message"), [
    ((STEPS, network(), LOSS), "model list grid(x, y, domain)"),
    ((lambda x: x, STEPS, LOSS), "model function"),
    ((network(), STEPS[0], LOSS), "steps Step"),
    ((network(), (X, Y, DOMAIN), LOSS), "steps tuple Tensor"),
    ((network(), X, LOSS), "steps Tensor"),
    ((network(), [], LOSS), "one step"),
    ((network(), STEPS, nn.CrossEntropyLoss), "objective medic.objective"),
    ((network(), STEPS, "ce"), "'ce' medic.objective"),
    ((network(), STEPS, mean), "mean medic.objective"),
    ((network(), STEPS, lambda model, step: medic.ce(medic.Output(model(step.x)), step.y)), "Tensor medic.objective"),
])  # fmt: skip
def test_mistakes_of_a_call(strategy, arguments, message):
    with pytest.raises(MedicError, match=naming(message)):
        strategy(*arguments)


@pytest.mark.parametrize(("batch", "message"), [
    ((X.numpy(), Y, DOMAIN), "x ndarray tensor"),
    (([X], Y, DOMAIN), "x list torch.stack"),
    ((X, Y.tolist(), DOMAIN), "y list torch.as_tensor"),
    ((X, Y.float(), DOMAIN), "y float32 y.long()"),
    ((X, functional.one_hot(Y), DOMAIN), f"y ({N}, 6) ({N},) argmax(1)"),
    ((X, Y[:, None], DOMAIN), f"y ({N}, 1)"),
    ((X, Y[:5], DOMAIN), f"y (5,) {N}"),
    ((X[:5], Y, DOMAIN), f"y ({N},) 5"),
    ((X, Y, DOMAIN[:5]), f"domain (5,) {N}"),
    ((X, Y, ["photo"] * N), "domain list 'photo' names.index"),
    ((X, Y, DOMAIN.double()), "domain float64 domain.long()"),
    ((X, Y), "'domain' domain="),
    ((X[:0], Y[:0], DOMAIN[:0]), "empty"),
    ((X, Y - 1, DOMAIN), "label -1 y"),
])  # fmt: skip
def test_mistakes_of_a_batch(batch, message):
    with pytest.raises(MedicError, match=naming(message)):
        medic.Grid(3, 3)(*batch)


def test_labels_of_any_integer_type():
    for kind in (torch.int32, torch.uint8):
        (steps, _), (expected, _) = (
            (grid := medic.Grid(3, 3)(X, Y.to(one), DOMAIN.to(one)), grid) for one in (kind, torch.int64)
        )
        assert [step.y.tolist() for step in steps] == [step.y.tolist() for step in expected]
        medic.Joint()(network(), steps, LOSS)


class Returning(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.net, self.function = network(), function

    def forward(self, x):
        return self.function(self.net(x))


@pytest.mark.parametrize(("model", "x", "y", "message"), [
    (network(), (255 * X).byte(), Y, "uint8 x.float()"),
    (network(), X.double(), Y, "float64 float32"),
    (network(), X[:, :3], Y, f"({N}, 3)"),
    (network(), X, Y + 1, "label 6 6 0 to 5"),
    (network(), X, Y - 1, "label -1 unknown"),
    (Returning(lambda z: None), X, Y, "NoneType logits"),
    (Returning(lambda z: {"logits": z}), X, Y, "dict logits"),
    (Returning(lambda z: (z, z)), X, Y, f"tuple ({N}, 6)"),
    (Returning(lambda z: z.argmax(1)), X, Y, f"({N},) int64"),
    (Returning(lambda z: z[:5]), X, Y, f"(5, 6) {N}"),
    (Returning(lambda z: z[:, :, None]), X, Y, f"({N}, 6, 1)"),
])  # fmt: skip
@pytest.mark.parametrize("forward", ["step", "task"])
@pytest.mark.parametrize("loss", [medic.ce, nn.CrossEntropyLoss(), mean])
def test_mistakes_of_a_model(model, x, y, message, loss, forward):
    with pytest.raises(MedicError, match=naming(message)):
        medic.Joint()(model, [medic.Step(x, y, (N,))], medic.objective(loss, forward=forward))


def test_a_model_that_fails_by_itself_is_not_explained():
    def fail(logits):
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        medic.Joint()(Returning(fail), STEPS, LOSS)
