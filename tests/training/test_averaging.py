"""Weight averages: which weights are averaged, and how."""

import gc
import io
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from medic.errors import MedicError, TrainingError
from medic.training.averaging import AVERAGES, Ema, RunningMean, Swad, Tail
from tests.messages import naming

# The test vectors of the specification: three evaluations to converge, six to give up, 30 % above the mean.
FALLING = [1, 0.9, 0.8, 0.7, 0.65, 0.6, 0.5, 0.52, 0.55, *[0.6] * 6]
RISING = [2, 1.5, 1.2, 1, 0.9, 0.8, 0.5, 0.52, 0.55, *[0.6] * 6, *[0.9] * 10]
AT_ONCE = [0.5, *[0.6] * 7]


def one_hot(k, size, dtype=torch.float64):
    return [torch.eye(size, dtype=dtype)[k]]


def counted(losses, dtype=torch.float64, **numbers):
    """A run with a one-hot vector for each segment: it, and how large each segment's share of the result is."""
    swad = Swad(**numbers)
    for k, loss in enumerate(losses):
        swad.update(one_hot(k, len(losses), dtype))
        swad.close(loss, k)
        if swad.dead:
            break
    (result,) = swad.result()
    assert result.dtype == dtype
    return swad, {k: share for k, share in enumerate(result.tolist()) if share}


def shares(counts):
    """What each segment's share should be, for how often each is counted."""
    return pytest.approx({k: count / sum(counts.values()) for k, count in counts.items()})


def wandering(iteration, dtype=torch.float32):
    """Two parameters that are different at every iteration."""
    generator = torch.Generator().manual_seed(iteration)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((3, 2), (5,))]


def train(swad, losses, start=0, between=lambda swad: swad):
    """Go on with a run of three iterations to a segment; `between` is done after every evaluation."""
    for k in range(start, len(losses)):
        for iteration in range(3 * k, 3 * k + 3):
            swad.update(wandering(iteration))
        swad.close(losses[k], 3 * k + 2)
        swad = between(swad)
    return swad


def through_a_file(swad, device=None):
    """The same, saved and loaded."""
    file = io.BytesIO()
    torch.save(swad.state_dict(), file)
    file.seek(0)
    other = Swad(swad.converge, swad.tolerance, swad.ratio)
    other.load_state_dict(torch.load(file, weights_only=True), device)
    return other


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def summary(tree):
    """A state dict with numbers for its tensors, so that two can be compared."""
    if isinstance(tree, dict):
        return {key: summary(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [summary(value) for value in tree]
    return tree.tolist() if isinstance(tree, Tensor) else tree


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_falling_loss_counts_the_first_of_the_valley_twice(dtype):
    swad, segment_shares = counted(FALLING, dtype)
    assert swad.valley == (6, pytest.approx(0.680333, abs=1e-6))
    assert not swad.dead
    assert segment_shares == shares({5: 1, 6: 2, **dict.fromkeys(range(7, 15), 1)})


def test_convergence_is_found_two_evaluations_later():
    assert not counted(FALLING[:8])[0].converged
    assert counted(FALLING[:9])[0].converged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rising_loss_is_dead_when_it_rose_for_good(dtype):
    swad, segment_shares = counted(RISING, dtype)
    assert swad.valley == (6, pytest.approx(0.680333, abs=1e-6))
    assert swad.dead
    assert segment_shares == shares(dict.fromkeys(range(6, 15), 1))
    assert not counted(RISING[:20])[0].dead
    assert counted(RISING[:21])[0].dead


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convergence_before_the_queue_is_full_counts_the_oldest_again(dtype):
    swad, segment_shares = counted(AT_ONCE, dtype)
    assert swad.valley == (0, pytest.approx(0.736667, abs=1e-6))
    assert segment_shares == shares({0: 3, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1})


def test_tolerance_less_than_converge():
    # T = 1.3 · mean(.5, .6, .7) = .78 at k=3, where the three newest start with the least, 1. Then 3 - 2 = 1 segment
    # after it is added, 2. k=4 adds the oldest of two, 3, and k=5 adds 4. At k=6 both are above T: dead. 1 itself
    # is never the oldest of two, so never counted.
    losses = [1, 0.5, 0.6, 0.7, 0.6, 0.9, 0.9]
    swad, segment_shares = counted(losses, converge=3, tolerance=2)
    assert swad.valley == (1, pytest.approx(0.78))
    assert swad.dead
    assert segment_shares == shares({2: 1, 3: 1, 4: 1})
    # Ended at k=4: 2 and 3 were added, and of the queue (3, 4) all but the oldest follow while one is at most T.
    swad, segment_shares = counted(losses[:5], converge=3, tolerance=2)
    assert not swad.dead
    assert segment_shares == shares({2: 1, 3: 1, 4: 1})
    # Ended at k=5: of the queue (4, 5) the oldest was added, and 5 is above T.
    assert counted(losses[:6], converge=3, tolerance=2)[1] == shares({2: 1, 3: 1, 4: 1})


def test_tolerance_as_large_as_converge():
    # T = 1.3 · mean(.5, .6) = .715 at k=2, from 1; nothing is added. k=3 adds the oldest of two, 2, and k=4 adds 3.
    # At k=5 both are above T: dead. 1 left the queue before it was looked at, so it is never counted.
    losses = [1, 0.5, 0.6, 0.7, 0.8, 0.8, 0.1]
    swad, segment_shares = counted(losses, converge=2, tolerance=2)
    assert swad.valley == (1, pytest.approx(0.715))
    assert swad.dead
    assert segment_shares == shares({2: 1, 3: 1})
    # Ended at k=2: of the queue (1, 2) the oldest is dropped, and 2 is at most T.
    assert counted(losses[:3], converge=2, tolerance=2)[1] == shares({2: 1})


@pytest.mark.parametrize("losses", [[0.1, 1], [0.1, 1, 1]])
def test_a_loss_that_rises_at_once_leaves_the_segment_before(losses):
    # T = 1.3 · .55, so nothing after the first is ever below it, and nothing is added to the final mean.
    swad, segment_shares = counted(losses, converge=2, tolerance=2)
    assert swad.dead == (len(losses) == 3)
    assert segment_shares == {0: 1.0}
    assert same(through_a_file(swad).result(), swad.result())


def test_equal_losses_converge():
    assert counted([0.5] * 3)[0].valley == (0, pytest.approx(0.65))


def test_a_run_that_never_converges_uses_its_last_segment():
    swad, segment_shares = counted([1 / (k + 1) for k in range(12)])
    assert not swad.converged
    assert segment_shares == {11: 1.0}
    swad.update(one_hot(0, 12))  # of a segment that was not ended
    assert torch.equal(swad.result()[0], one_hot(11, 12)[0])


def test_before_any_evaluation_the_result_is_the_mean_so_far():
    swad = Swad()
    with pytest.raises(MedicError, match=naming("iteration")):
        swad.result()
    swad.update([torch.tensor([1.0])])
    swad.update([torch.tensor([2.0])])
    assert swad.result()[0].tolist() == [1.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_mean(dtype):
    mean = RunningMean([torch.full((3, 2), 7.0, dtype=dtype), torch.full((5,), 7.0, dtype=dtype)])
    iterates = [wandering(iteration, dtype) for iteration in range(20)]
    for iterate in iterates:
        mean.add(iterate)
    assert mean.count == 20
    for average, all_of_it in zip(mean.tensors, zip(*iterates, strict=True), strict=True):
        assert average.dtype == dtype
        torch.testing.assert_close(average, torch.stack(all_of_it).mean(0))


def test_the_mean_of_one_is_itself_to_the_bit_and_stays_in_place():
    mean = RunningMean()
    mean.add(wandering(0))
    places = [tensor.data_ptr() for tensor in mean.tensors]
    for _ in range(9):
        mean.add(wandering(0))
    assert same(mean.tensors, wandering(0))
    assert [tensor.data_ptr() for tensor in mean.tensors] == places


def test_parameters_are_detached_and_copied():
    swad = Swad()
    weight = nn.Parameter(torch.ones(2))
    for _ in range(2):
        swad.update([weight])
    with torch.no_grad():
        weight.fill_(9.0)
    (result,) = swad.result()
    assert type(result) is Tensor
    assert not result.requires_grad
    assert result.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("losses", [FALLING, RISING, AT_ONCE, [1 / (k + 1) for k in range(5)]])
def test_the_result_changes_nothing(losses):
    def look(swad):
        before = summary(swad.state_dict())
        for tensor in swad.result():
            tensor.fill_(math.nan)
        assert summary(swad.state_dict()) == before
        return swad

    assert same(train(Swad(), losses, between=look).result(), train(Swad(), losses).result())


@pytest.mark.parametrize("numbers", [{}, {"converge": 3, "tolerance": 2}, {"converge": 2, "tolerance": 2}])
@pytest.mark.parametrize("at", range(len(FALLING)))
def test_going_on_from_a_checkpoint_gives_the_same_result(at, numbers):
    whole = train(Swad(**numbers), FALLING)
    resumed = through_a_file(train(Swad(**numbers), FALLING[: at + 1]))
    train(resumed, FALLING, at + 1)
    assert (resumed.valley, resumed.dead) == (whole.valley, whole.dead)
    assert same(resumed.result(), whole.result())


def test_going_on_within_a_segment_gives_the_same_result():
    swad = train(Swad(), FALLING[:10])
    swad.update(wandering(30))
    resumed = through_a_file(swad)
    for each in (swad, resumed):
        each.update(wandering(31))
        each.close(0.6, 31)
    assert same(swad.result(), resumed.result())


@pytest.mark.parametrize("at", [3, 8, 11])
def test_a_state_stays_as_it_was(at):
    swad = train(Swad(), FALLING[:at])
    swad.update(wandering(3 * at))
    state = swad.state_dict()
    before = summary(state)
    loaded = Swad()
    loaded.load_state_dict(state)
    for each in (swad, loaded):
        each.update(wandering(3 * at + 1))
        each.close(0.6, 3 * at + 2)
        train(each, FALLING, at + 1)
    assert summary(state) == before
    assert same(swad.result(), loaded.result())


@pytest.mark.parametrize("losses", [FALLING, RISING, AT_ONCE])
@pytest.mark.parametrize(("converge", "tolerance"), [(3, 6), (3, 2), (2, 2), (1, 1)])
def test_copies_are_few(losses, converge, tolerance, request):
    gc.freeze()  # so that only objects made from here on are looked at
    request.addfinalizer(gc.unfreeze)

    def held():
        return sum(type(each) is Tensor and each.shape == (13, 17) for each in gc.get_objects())

    before = held()
    swad, most = Swad(converge, tolerance), 0
    for k, loss in enumerate(losses):
        swad.update([torch.full((13, 17), float(k))])
        most = max(most, held() - before)
        swad.close(loss, k)
    assert 2 <= most <= max(converge, tolerance) + 2


def test_each_copy_is_saved_once():
    def saved(swad):
        places = [copy[0].data_ptr() for copy in swad.state_dict()["copies"]]
        assert len(set(places)) == len(places)
        return len(places)

    swad = train(Swad(), RISING[:9])  # nothing was added to the final mean yet, so it is one of the six segments
    loaded = through_a_file(swad)
    assert saved(swad) == saved(loaded) == 6
    loaded.update(wandering(27))
    assert saved(loaded) == 6
    assert saved(train(swad, RISING[:12], 9)) == 7


def test_nothing_happens_after_the_end():
    swad, _ = counted(RISING)
    before = summary(swad.state_dict())
    swad.update(one_hot(0, len(RISING)))
    swad.close(0.1, 99)
    assert swad.dead
    assert summary(swad.state_dict()) == before
    assert not any(swad.close_due(iteration, 200) for iteration in range(100, 201))


@pytest.mark.parametrize(("iterations", "ends"), [(4, [4]), (10, [5, 10]), (30, [5, 10, 15, 20, 25, 30])])
def test_a_short_run_has_few_segments(iterations, ends):
    swad = Swad()
    assert [i for i in range(iterations + 1) if swad.close_due(i, iterations)] == ends
    assert sum(swad.close_due(iteration, 1000) for iteration in range(1001)) == 20


def test_a_segment_is_closed_once():
    swad = Swad(segments=2)
    swad.update(one_hot(0, 1))
    assert [swad.close_due(iteration, 10) for iteration in (0, 4, 5, 6, 10)] == [False, False, True, False, True]
    swad.close(0.5, 5)
    assert [swad.close_due(iteration, 10) for iteration in (5, 10)] == [False, True]


@pytest.mark.parametrize(("numbers", "message"), [
    ({"converge": 0}, "converge 0 1"),
    ({"tolerance": -1}, "tolerance -1 1"),
    ({"ratio": -0.1}, "ratio -0.1 0"),
    ({"ratio": math.nan}, "ratio nan"),
    ({"ratio": math.inf}, "ratio inf"),
])  # fmt: skip
def test_bad_numbers_are_refused(numbers, message):
    with pytest.raises(MedicError, match=naming(message)):
        Swad(**numbers)


def test_a_state_of_other_numbers_is_refused():
    with pytest.raises(MedicError, match=naming("0.3 0.2")):
        Swad(ratio=0.2).load_state_dict(Swad().state_dict())


def test_an_evaluation_without_iterations_is_refused():
    swad, _ = counted(FALLING[:2])
    with pytest.raises(MedicError, match=naming("iteration 1")):
        swad.close(0.5, 1)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused(loss):
    swad = Swad()
    swad.update(one_hot(0, 2))
    with pytest.raises(TrainingError, match=naming(f"loss {loss}")):
        swad.close(loss, 7)


@pytest.mark.parametrize("at", [4, 9, 12])
def test_a_loaded_state_moves_to_the_device_of_the_parameters(at):
    swad = through_a_file(train(Swad(), FALLING[:at]), torch.device("meta"))
    swad.update([tensor.to("meta") for tensor in wandering(0)])
    state = swad.state_dict()
    assert all(tensor.is_meta for copy in state["copies"] for tensor in copy)
    assert all(tensor.is_meta for tensor in state["segment"]["parameters"])
    swad.close(0.6, 3 * at + 2)
    assert all(tensor.is_meta for tensor in swad.result())


@pytest.mark.gpu
@pytest.mark.parametrize("at", [4, 9, 12])
def test_a_run_on_a_gpu_goes_on_from_one_on_the_host_without_waiting(at):
    whole = train(Swad(), FALLING)
    resumed = through_a_file(train(Swad(), FALLING[:at]), torch.device("cuda"))
    iterates = [[tensor.cuda() for tensor in wandering(i)] for i in range(3 * len(FALLING))]
    resumed.update(iterates[3 * at])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for i in range(3 * at + 1, len(iterates)):
            resumed.update(iterates[i])
            if i % 3 == 2:
                resumed.close(FALLING[i // 3], i)
        result = resumed.result()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(tensor.is_cuda for tensor in result)
    for actual, expected in zip(result, whole.result(), strict=True):
        torch.testing.assert_close(actual.cpu(), expected)


def test_the_tolerance_of_its_authors_depends_on_the_benchmark():
    ratios = [AVERAGES["swad"].hyperparameters(dataset)["ratio"] for dataset in ("vlcs", "pacs", None)]
    assert ratios == [0.2, 0.3, 0.3]


def averaged(average, iterations, restored_at=None):
    """The result for one-hot weights at every iteration, perhaps through a file once."""
    for k in range(iterations):
        if k == restored_at:
            file = io.BytesIO()
            torch.save(average.state_dict(), file)
            file.seek(0)
            average = type(average)()
            average.load_state_dict(torch.load(file, weights_only=True))
        average.update(one_hot(k, iterations), (k + 1) / iterations)
    (result,) = average.result()
    return result


@pytest.mark.parametrize(("share", "first"), [(1.0, 0), (0.5, 5), (0.3, 7), (1e-9, 9)])
def test_tail(share, first):
    expected = torch.zeros(10, dtype=torch.float64)
    expected[first:] = 1 / (10 - first)
    torch.testing.assert_close(averaged(Tail(share), 10), expected)


@pytest.mark.parametrize("iterations", [1, 3, 7, 10, 30, 49, 300, 5000])
def test_the_length_of_a_tail(iterations):
    """Of n iterations the last ⌈share · n⌉ count, in exact arithmetic: 0.9 of 10 are 9."""
    for percent in (1, 10, 29, 30, 50, 58, 70, 90, 99, 100):
        tail = Tail(percent / 100)
        kept = math.ceil(Fraction(percent, 100) * iterations)
        for k in range(iterations):
            tail.update([torch.zeros(1)], (k + 1) / iterations)
        assert tail.state_dict()["count"] == kept


def test_ema():
    """Each weight is 1 - d times the product of all later d, with d = t / (t + 9) up to 0.8, from iteration 36 on."""
    decays = [min(t / (t + 9), 0.8) for t in range(50)]
    expected = [(1 - d) * math.prod(decays[t + 1 :]) for t, d in enumerate(decays)]
    torch.testing.assert_close(averaged(Ema(0.8), 50), torch.tensor(expected, dtype=torch.float64))
    assert sum(expected) == pytest.approx(1)


@pytest.mark.parametrize("kind", [Tail, Ema])
@pytest.mark.parametrize("at", [1, 6, 9])
def test_a_mean_continues_where_it_was_saved(kind, at):
    assert kind().converged
    assert torch.equal(averaged(kind(), 10, restored_at=at), averaged(kind(), 10))
