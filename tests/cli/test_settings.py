"""Settings by options and files: which of them counts."""

import pytest
import yaml

from medic.cli.options import SPELLINGS
from medic.config.resolve import resolve
from tests.built import plan_of


def asked_in(out):
    """Return the settings that `--print-config` printed as asked for."""
    return yaml.safe_load(out)


def complete_in(out):
    """Return all settings that `--print-config` printed, the derived ones too, which are comments."""
    explicit, _, derived = out.partition("# Derived")
    lines = derived.splitlines()[1:]
    assert all(line.startswith("# ") for line in lines)
    return {**(yaml.safe_load(explicit) or {}), **yaml.safe_load("\n".join(line[2:] for line in lines))}


def test_print_config_and_overrides(medic, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("target: printed\nmethod: medic\nlr: 0.5\nsteps: [2, 2]\nknown: ['0', '1', '2']\n")
    code, out, _ = medic("train", "--config", str(config), "--lr", "0.25", "--print-config")
    assert code == 0
    settings = {"target": "printed", "method": "medic", "lr": 0.25, "steps": [2, 2], "known": ["0", "1", "2"]}
    assert asked_in(out) == settings
    assert asked_in(medic("train", "--lr", "0.25", "--config", str(config), "--print-config")[1])["lr"] == 0.25
    config.write_text("target_domains: printed\nalgorithm: medic\nbatch-size: 4\nknown: [0, 1, 2]\nlr: null\n")
    aliased = medic("train", "--config", str(config), "--print-config")[1]
    assert asked_in(aliased) == {"target": "printed", "method": "medic", "batch_size": 4, "known": [0, 1, 2]}
    assert complete_in(aliased)["lr"] is not None


@pytest.mark.parametrize("method", ["medic++", "fish-domainbed", "daml", "miro"])
def test_a_printed_configuration_is_the_same_recipe(medic, tmp_path, method):
    code, out, _ = medic("train", "--target", "printed", "--method", method, "--iterations", "7", "--print-config")
    assert code == 0
    plan = plan_of(target="printed", method=method, iterations=7, device="auto")
    assert complete_in(out) == {**plan.config.settings, **asked_in(out)}
    (tmp_path / "run.yaml").write_text(out)
    again = medic("train", "--config", str(tmp_path / "run.yaml"), "--print-config")[1]
    assert again == out
    for settings in (asked_in(out), complete_in(out)):  # the second as if all lines were uncommented
        assert resolve(settings).config.identity == plan.config.identity


def test_the_configuration_of_a_run_is_followed_as_it_was_asked(medic, mini, tmp_path):
    """Settings that were derived for one method are derived anew for another."""
    import medic as package

    run = package.train(
        dataset=mini, target="street", method="medic++", iterations=2, batch_size=2, device="cpu", output=tmp_path
    )
    files = ["--config", str(run.path / "config.json"), "--print-config"]
    assert asked_in(medic("train", *files)[1]) == yaml.safe_load((run.path / "settings.json").read_text())
    followed = complete_in(medic("train", *files, "--method", "erm")[1])
    expected = plan_of(dataset=mini, method="erm", iterations=2, batch_size=2, output=str(tmp_path))
    assert resolve(followed).config.identity == expected.config.identity
    assert (followed["objective"], followed["steps"], followed["score"]) == ("ce", [1], "cls")
    (run.path / "settings.json").unlink()  # the complete settings are all there is
    assert complete_in(medic("train", *files)[1]) == run.settings


def test_usual_values_on_the_line_win_over_a_file_too(medic, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("target: printed\nmethod: erm\niterations: 1000\nseed: 3\noutput: elsewhere\n")
    line = ("--iterations", "300", "--method", "medic++", "--seed", "0", "--output", "runs")
    printed = asked_in(medic("train", "--config", str(config), *line, "--print-config")[1])
    assert [printed[name] for name in ("iterations", "method", "seed", "output")] == [300, "medic++", 0, "runs"]
    config.write_text("target: printed\noutput: elsewhere\nspan: {seed: [1, 2]}\n")
    _, out, _ = medic("sweep", str(config), "--seed", "0", "--output", str(tmp_path / "o"), "--dry-run")
    assert "1 run" in out
    config.write_text("method: erm\n")
    for line, named in (
        (["--config", str(config)], "method"),
        (["--method", "medic++"], "method"),
        (["--seed", "0"], "seed"),
    ):
        code, _, err = medic("reproduce", "paradigms", "--quick", "--dry-run", *line)
        assert code == 2
        assert f"--{named} " in err


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (("--method", "erm"), {"method": "erm"}),
        (("--method", "ebil-hads", "--lr", "0.01"), {"method": "ebil-hads", "lr": "0.01"}),
        (("--images", "72"), {"images": "72"}),
        (("--target", "street"), {"target": "street"}),
        (("--class-splits", "2", "--steps", "2"), {"class-splits": "2", "steps": "2"}),
        (("--objective", "ce"), {"objective": "ce"}),
        (("--dataset", "digits", "--optimizer", "adam"), {"optimizer": "adam"}),
        (("--hparams-seed", "3", "--optimizer", "adam"), {"hparams-seed": "3", "optimizer": "adam"}),
    ],
)  # fmt: skip
def test_what_follows_from_a_printed_file_follows_the_line(medic, tmp_path, options, changed):
    base = {"target": "printed", "method": "medic++", "lr": "0.05", "iterations": "7"}

    def printed(settings):
        return medic("train", *(part for name, value in settings.items() for part in (f"--{name}", value)),
                     "--print-config")[1]  # fmt: skip

    config = tmp_path / "printed.yaml"
    config.write_text(printed(base))
    code, out, err = medic("train", "--config", str(config), *options, "--print-config")
    assert (code, err) == (0, "")
    assert complete_in(out) == complete_in(printed(base | changed))
    config.write_text(out)  # from here on it is the same
    again = medic("train", "--config", str(config), "--iterations", "9", "--print-config")[1]
    assert complete_in(again) == complete_in(printed(base | changed | {"iterations": "9"}))


def test_names_are_listed_in_any_case(medic):
    assert medic("methods", "ERM") == medic("methods", "erm")
    assert medic("datasets", "PACS") == medic("datasets", "pacs")


def test_other_codebases_spellings(medic):
    plain = medic("train", "--target", "street", "--method", "erm", "--known", "0", "1", "--print-config")
    assert plain[0] == 0
    aliased = medic(
        "train", "--target-domains", "street", "--algorithm", "erm", "--known-classes", "0", "1", "--print_config"
    )
    assert aliased == plain
    joined = medic("train", "--target_domains", "street", "--algorithm=erm", "--known=0,1", "--print-config")
    plans = [resolve(asked_in(out)) for _, out, _ in (plain, joined)]
    assert plans[0].config.settings == plans[1].config.settings
    for spelling in SPELLINGS:
        assert spelling in " ".join(medic("train", "--help")[1].split())
