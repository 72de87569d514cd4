"""Which evaluation counts, and that the target has no part in it."""

import math

import pytest

from medic.errors import MedicError
from medic.evaluation import selection


def record(step, target, out, inside=None, acc=None, **values):
    """An evaluation with `target` (in, out) accuracies of domain 0, and those of validation of the others."""
    accuracies = {f"env{i + 1}_out_acc": value for i, value in enumerate(out)}
    accuracies |= {f"env{i + 1}_in_acc": value for i, value in enumerate(inside or out)}
    mean = sum(out) / len(out) if acc is None else acc
    return {
        "iteration": step, "step": step, "env0_in_acc": target[0], "env0_out_acc": target[1], **accuracies,
        "validation": {"acc": mean}, "target": {"acc": target[0]}, **values,
    }  # fmt: skip


def hide_target(records):
    return [selection.without_target(one, [0]) for one in records]


class TestGoldenRecords:
    """The checks that DomainBed's protocol asks for."""

    def test_training_domain_validation(self):
        records = [record(0, (0.1, 0.2), (0.6, 0.7), (1, 1)), record(1, (0.3, 0.4), (0.7, 0.8), (0, 0))]
        chosen = selection.by_domains([hide_target(records)])
        assert (chosen.record, chosen.value) == (1, pytest.approx(0.75))
        assert records[chosen.record]["env0_in_acc"] == 0.3

    def test_oracle_takes_the_last_step(self):
        records = [record(0, (0.75, 0.70), (0.5, 0.5)), record(1, (0.65, 0.60), (0.5, 0.5))]
        chosen = selection.by_oracle([records], [0])
        assert (chosen.record, chosen.value) == (1, 0.60)
        assert records[chosen.record]["env0_in_acc"] == 0.65

    def test_oracle_of_several_targets_is_their_mean(self):
        runs = [[record(0, (0, first), (second,))] for first, second in ((0.9, 0.1), (0.7, 0.7))]
        assert selection.by_oracle(runs, [0, 1]).run == 1
        assert selection.target_mean(runs[0][0], [0, 1], "out") == pytest.approx(0.5)
        with pytest.raises(MedicError, match="no held-out images"):
            selection.by_oracle(runs, [0, 2])

    def test_last_takes_the_last_evaluation_of_the_run_that_ends_best(self):
        accuracies = ((0.9, 0.9, 0.2), (0.1, 0.1, 0.3), (0.3, 0.3, 0.1))
        runs = [hide_target([record(step, (0, 0), (acc,)) for step, acc in enumerate(run)]) for run in accuracies]
        assert selection.by_last(runs) == (1, 2, 0.3)

    def test_leave_one_domain_out(self):
        single = [record(0, (0.1, 0.1), (0.9, 0.9))]
        pairs = {1: [record(0, (0, 0), (0, 0), (0.5, 0))], 2: [record(0, (0, 0), (0, 0), (0, 0.6))]}
        chosen = selection.by_leaving_out([hide_target(single)], [pairs], 2)
        assert chosen.value == pytest.approx(0.55)
        assert single[chosen.record]["env0_in_acc"] == 0.1
        del pairs[2]
        assert selection.by_leaving_out([hide_target(single)], [pairs], 2) is None

    def test_leave_one_domain_out_of_averaged_weights(self):
        """They are measured at the step of the last ones; neither stands in for the other, nor for a missing pair."""

        def run(last, averaged):
            return [record(9, (0, 0), (0, 0), last), record(9, (0, 0), (0, 0), averaged, averaged=True)]

        single, pairs = run((0, 0), (0, 0)), {1: run((0.9, 0), (0.5, 0)), 2: run((0, 0.9), (0, 0.6))}
        chosen = selection.by_leaving_out([hide_target(single)], [pairs], 2)
        assert (chosen.record, chosen.value) == (1, pytest.approx(0.55))
        del pairs[2]
        assert selection.by_leaving_out([hide_target(single)], [pairs], 2) is None

    def test_ties_do_not_look_at_the_target(self):
        better, worse = (record(0, (value, value), (0.5, 0.5)) for value in (0.9, 0.1))
        for runs in ([[better], [worse]], [[worse], [better]]):
            # Across draws the last wins, as DomainBed's stable sort has it; within a run the first.
            assert selection.by_validation([hide_target(run) for run in runs]).run == 1
        assert selection.select(hide_target([better, worse])) == selection.select(hide_target([worse, better])) == 0

    def test_what_is_no_number_is_worst(self):
        runs = [[record(0, (0, 0), (0.1, 0.1))], [record(0, (0, 0), (float("nan"),) * 2)]]
        assert selection.by_domains([hide_target(run) for run in runs]).run == 0

    def test_honest_rules_see_no_target(self):
        assert (
            not {"target", "targets", "source", "env0_in_acc", "env0_out_acc"}
            & selection.without_target(record(0, (0.1, 0.2), (0.6, 0.7), targets={}, source={}), [0]).keys()
        )


class TestSelection:
    RECORDS = [  # noqa: RUF012
        {
            "validation": {"acc": acc},
            "target": {"acc": 1 - acc},
            "targets": {},
            "source": {"oscr": 0.5},
            "env0_out_acc": acc,
            "env3_in_acc": 0.1,
            "env2_out_acc": 0.2,
        }
        for acc in (0.5, 0.8, 0.8, 0.7)
    ]

    def test_best_validation_first_on_ties(self):
        assert selection.select(self.RECORDS) == 1

    @pytest.mark.parametrize(("acc", "images", "chosen"), [
        (0.9, 400, 4), (0.72, 400, 4), (0.69, 400, 1), (0.72, 4000, 1), (0.1, None, 4), (float("nan"), 100, 1),
    ])  # fmt: skip
    def test_averages_without_a_list_of_correct_images_must_be_worse_for_certain(self, acc, images, chosen):
        """Of 400 images, accuracies of 0.8 and 0.72 may differ on 0.8 − 0.72 + 2 · 0.2 = 48 %: an error of 0.034."""
        counted = {} if images is None else {"images": images}
        averaged = {"validation": {"acc": acc, **counted}, "averaged": True}
        assert selection.select([*self.RECORDS, averaged]) == chosen

    def test_the_papers_rule_leaves_out_averaged_weights(self):
        averaged = {"validation": {"acc": 0.9, "images": 400}, "averaged": True}
        assert selection.by_evaluation([[*self.RECORDS, averaged]]) == (0, 1, 0.8)
        assert selection.by_evaluation([[*self.RECORDS[:1], averaged], self.RECORDS]) == (1, 1, 0.8)

    @pytest.mark.parametrize("rule", [selection.by_validation, selection.by_evaluation, selection.by_domains])
    def test_averaged_weights_that_are_the_method_are_never_replaced(self, rule):
        swad = {"validation": {"acc": 0.1, "images": 400}, "env0_out_acc": 0.1, "averaged": True, "required": True}
        assert selection.select([*self.RECORDS, swad]) == 4
        assert rule([[*self.RECORDS, swad]]) == (0, 4, 0.1)

    def test_the_target_is_hidden(self):
        assert selection.without_target(self.RECORDS[0], [2, 3]) == {"validation": {"acc": 0.5}, "env0_out_acc": 0.5}

    def test_selected_weights_are_kept(self, run):
        best = run.description["provenance"]["record"]
        assert best == selection.select([selection.without_target(record, [3]) for record in run.records])
        output, label, _ = run.outputs("validation")
        accuracy = (output.logits.argmax(1) == label).double().mean().item()
        assert accuracy == pytest.approx(run.records[best]["validation"]["acc"])


def evaluation(*domains, **values):
    """An evaluation in which a text of 0 and 1 says which held-out images of each source domain are correct."""
    accuracies = [domain.count("1") / len(domain) for domain in domains]
    by_domain = {f"env{i}_out_acc": accuracy for i, accuracy in enumerate(accuracies)}
    by_domain |= {
        f"env{i}_out_correct": selection.pack(bit == "1" for bit in domain) for i, domain in enumerate(domains)
    }
    whole = "".join(domains)
    return {"validation": {"acc": whole.count("1") / len(whole), "images": len(whole)}, **by_domain, **values}


def models(both, best, average, neither=0):
    """Return the images that the best evaluation and the averaged weights get right: both, one of them, neither."""
    return (
        "1" * both + "1" * best + "0" * average + "0" * neither,
        "1" * both + "0" * best + "1" * average + "0" * neither,
    )


class TestPairedComparison:
    """The averaged weights and the best evaluation see the same images."""

    def test_worse_on_five_percent_of_images_that_hardly_differ(self):
        """An audit's run: 300 and 317 of 432 images, 22 against 5 discordant; the exact McNemar test has p = 0.0015."""
        best, average = models(both=295, best=22, average=5, neither=110)
        others = [evaluation(best.replace("1", "0", 40)) for _ in range(2)]
        records = [*others, evaluation(best), evaluation(average, averaged=True)]
        assert selection.select(records) == 2
        # Their accuracies alone leave it open: a standard error of one accuracy is 2.1 points.
        for record in records:
            del record["env0_out_correct"]
        assert selection.select(records) == 3

    @pytest.mark.parametrize(("best", "average", "chosen"), [(10, 2, 1), (10, 3, 0), (4, 0, 1), (3, 0, 0), (0, 4, 0)])
    def test_margin_of_two_standard_errors_for_one_evaluation(self, best, average, chosen):
        """Of N = 100 images, b + c differ and d = (c − b) / N: the error is √((b + c) / N − d²) / √N."""
        first, second = models(50, best, average, 50 - best - average)
        error = math.sqrt((best + average) / 100 - ((best - average) / 100) ** 2) / 10
        assert ((best - average) / 100 > 2 * error) == bool(chosen)
        records = [evaluation(first), evaluation(second, averaged=True)]
        assert selection.select(records) == 1 - chosen

    def test_margin_is_the_closed_form(self):
        """13 against 5 of 30 images, in two domains."""
        first, second = models(6, 13, 5, 6)
        records = [evaluation(first[:10], first[10:]), evaluation(second[:10], second[10:], averaged=True)]
        pairs = selection._pooled(*records)
        assert pairs == [(30, 18, 8)]
        error = math.sqrt(18 / 30 - (8 / 30) ** 2) / math.sqrt(30)
        for evaluations, z in ((1, 2.0), (3, 2.4284), (5, 2.6083), (20, 3.0518)):
            assert selection._margin(pairs, evaluations) == pytest.approx(z * error, rel=1e-4)
        assert selection.select(records) == 0

    def test_the_best_of_many_evaluations_must_be_better_by_more(self):
        """10 against 2 is 2.4 standard errors: significant against one evaluation, but not as the best of 12."""
        first, second = models(50, 10, 2, 38)
        for count, chosen in ((1, 0), (2, 0), (3, 3), (12, 12)):
            records = [evaluation(first) for _ in range(count)]
            assert selection.select([*records, evaluation(second, averaged=True)]) == chosen

    def test_a_mean_of_domains_has_the_error_of_the_mean(self):
        """A small domain decides the mean, and its error: what is significant for pooled images is not for the mean."""
        small, large = models(4, 1, 0, 5), models(800, 12, 0, 188)
        records = [evaluation(*best_first) for best_first in zip(small, large, strict=True)]
        records[-1]["averaged"] = True
        assert selection.select(records) == 0
        assert selection.by_domains([records]).record == 1
        variances = (1 / 10 - 1 / 100) / 10, (12 / 1000 - (12 / 1000) ** 2) / 1000
        assert 2 * math.sqrt(sum(variances)) / 2 > (1 / 10 + 12 / 1000) / 2

    def test_leave_one_domain_out_compares_the_runs_that_left_it_out(self):
        def run(source, best, average):
            """The run that has a source as a second target; its `in` part is all that counts."""
            evaluations = [
                {
                    f"env{source}_in_acc": bits.count("1") / len(bits),
                    f"env{source}_in_correct": selection.pack(map(int, bits)),
                }
                for bits in (best, average)
            ]
            return [{"step": 9, **evaluations[0]}, {"step": 9, "averaged": True, **evaluations[1]}]

        single = [{"step": 9}, {"step": 9, "averaged": True}]
        noisy = {1: run(1, *models(50, 20, 14, 16)), 2: run(2, *models(50, 20, 14, 16))}
        assert selection.by_leaving_out([single], [noisy], 2) == (0, 1, pytest.approx(0.64))
        clear = {1: run(1, *models(50, 6, 0, 44)), 2: run(2, *models(50, 6, 0, 44))}
        assert selection.by_leaving_out([single], [clear], 2) == (0, 0, pytest.approx(0.56))

    def test_a_run_records_what_it_compares(self, run):
        """The pooled accuracy is that of the recorded images; those of the target are hidden from every rule."""
        for record in run.records:
            hidden = selection.without_target(record, record["args"]["test_envs"])
            packed = [int(value, 16) for key, value in hidden.items() if key.endswith("_out_correct")]
            images = sum(value.bit_length() - 1 for value in packed)
            right = sum(value.bit_count() - 1 for value in packed)
            assert images == record["validation"]["images"]
            assert right / images == pytest.approx(record["validation"]["acc"], abs=1e-12)
