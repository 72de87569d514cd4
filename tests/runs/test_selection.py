"""Which evaluation counts, and that the target has no part in it."""

import pytest

from medic.errors import MedicError
from medic.runs import selection


def record(step, target, out, inside=None, acc=None, **values):
    """An evaluation with `target` (in, out) accuracies of domain 0, and those of validation of the others."""
    given = {f"env{i + 1}_out_acc": value for i, value in enumerate(out)}
    given |= {f"env{i + 1}_in_acc": value for i, value in enumerate(inside or out)}
    mean = sum(out) / len(out) if acc is None else acc
    return {
        "iteration": step, "step": step, "env0_in_acc": target[0], "env0_out_acc": target[1], **given,
        "validation": {"acc": mean}, "target": {"acc": target[0]}, **values,
    }  # fmt: skip


def shown(records):
    return [selection.without_target(one, [0]) for one in records]


class TestGoldenRecords:
    """The checks that DomainBed's protocol asks for."""

    def test_training_domain_validation(self):
        records = [record(0, (0.1, 0.2), (0.6, 0.7), (1, 1)), record(1, (0.3, 0.4), (0.7, 0.8), (0, 0))]
        chosen = selection.by_domains([shown(records)])
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
        runs = [shown([record(step, (0, 0), (acc,)) for step, acc in enumerate(run)]) for run in accuracies]
        assert selection.by_last(runs) == (1, 2, 0.3)

    def test_leave_one_domain_out(self):
        single = [record(0, (0.1, 0.1), (0.9, 0.9))]
        pairs = {1: [record(0, (0, 0), (0, 0), (0.5, 0))], 2: [record(0, (0, 0), (0, 0), (0, 0.6))]}
        chosen = selection.by_leaving_out([shown(single)], [pairs], 2)
        assert chosen.value == pytest.approx(0.55)
        assert single[chosen.record]["env0_in_acc"] == 0.1
        del pairs[2]
        assert selection.by_leaving_out([shown(single)], [pairs], 2) is None

    def test_leave_one_domain_out_of_averaged_weights(self):
        """They are measured at the step of the last ones; neither stands in for the other, nor for a missing pair."""

        def run(last, averaged):
            return [record(9, (0, 0), (0, 0), last), record(9, (0, 0), (0, 0), averaged, averaged=True)]

        single, pairs = run((0, 0), (0, 0)), {1: run((0.9, 0), (0.5, 0)), 2: run((0, 0.9), (0, 0.6))}
        chosen = selection.by_leaving_out([shown(single)], [pairs], 2)
        assert (chosen.record, chosen.value) == (1, pytest.approx(0.55))
        del pairs[2]
        assert selection.by_leaving_out([shown(single)], [pairs], 2) is None

    def test_ties_do_not_look_at_the_target(self):
        better, worse = (record(0, (value, value), (0.5, 0.5)) for value in (0.9, 0.1))
        for runs in ([[better], [worse]], [[worse], [better]]):
            # Across draws the last wins, as DomainBed's stable sort has it; within a run the first.
            assert selection.by_validation([shown(run) for run in runs]).run == 1
        assert selection.select(shown([better, worse])) == selection.select(shown([worse, better])) == 0

    def test_what_is_no_number_is_worst(self):
        runs = [[record(0, (0, 0), (0.1, 0.1))], [record(0, (0, 0), (float("nan"),) * 2)]]
        assert selection.by_domains([shown(run) for run in runs]).run == 0

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
        (0.9, 400, 4), (0.77, 400, 4), (0.75, 400, 1), (0.75, 100, 4), (0.1, None, 4), (float("nan"), 100, 1),
    ])  # fmt: skip
    def test_averaged_weights_unless_they_are_significantly_worse(self, acc, images, chosen):
        """Two standard errors of 0.8 are 0.04 on 400 images, and 0.08 on 100."""
        counted = {} if images is None else {"images": images}
        averaged = {"validation": {"acc": acc, **counted}, "averaged": True}
        assert selection.select([*self.RECORDS, averaged]) == chosen

    def test_the_papers_rule_leaves_out_averaged_weights(self):
        averaged = {"validation": {"acc": 0.9, "images": 400}, "averaged": True}
        assert selection.by_evaluation([[*self.RECORDS, averaged]]) == (0, 1, 0.8)
        assert selection.by_evaluation([[*self.RECORDS[:1], averaged], self.RECORDS]) == (1, 1, 0.8)

    def test_the_target_is_hidden(self):
        assert selection.without_target(self.RECORDS[0], [2, 3]) == {"validation": {"acc": 0.5}, "env0_out_acc": 0.5}

    def test_selected_weights_are_kept(self, run):
        best = run.description["provenance"]["record"]
        assert best == selection.select([selection.without_target(record, [3]) for record in run.records])
        output, label, _ = run.outputs("validation")
        accuracy = (output.logits.argmax(1) == label).double().mean().item()
        assert accuracy == pytest.approx(run.records[best]["validation"]["acc"])
