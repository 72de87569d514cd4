"""Settings by options and files: which of them counts."""

import pytest
import yaml

from medic.cli.options import SPELLINGS


def test_print_config_and_overrides(medic, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("target: printed\nmethod: medic\nlr: 0.5\nsteps: [2, 2]\nknown: ['0', '1', '2']\n")
    code, out, _ = medic("train", "--config", str(config), "--lr", "0.25", "--print-config")
    assert code == 0
    printed = yaml.safe_load(out)
    assert (printed["target"], printed["method"], printed["lr"]) == (["printed"], "medic", 0.25)
    assert printed["known"] == ["0", "1", "2"]
    assert yaml.safe_load(medic("train", "--lr", "0.25", "--config", str(config), "--print-config")[1])["lr"] == 0.25
    config.write_text("target_domains: printed\nalgorithm: medic\nbatch-size: 4\nknown: [0, 1, 2]\nlr: null\n")
    aliased = yaml.safe_load(medic("train", "--config", str(config), "--print-config")[1])
    assert (aliased["method"], aliased["batch_size"], aliased["known"]) == ("medic", 4, ["0", "1", "2"])
    config.write_text(out)
    assert medic("train", "--config", str(config), "--print-config")[1] == out


def test_usual_values_on_the_line_win_over_a_file_too(medic, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("target: printed\nmethod: erm\niterations: 1000\nseed: 3\noutput: elsewhere\n")
    line = ("--iterations", "300", "--method", "medic++", "--seed", "0", "--output", "runs")
    printed = yaml.safe_load(medic("train", "--config", str(config), *line, "--print-config")[1])
    assert [printed[name] for name in ("iterations", "method", "seed", "output")] == [300, "medic++", 0, "runs"]
    config.write_text("target: printed\noutput: elsewhere\nspan: {seed: [1, 2]}\n")
    _, out, _ = medic("sweep", str(config), "--seed", "0", "--output", str(tmp_path / "o"), "--dry-run")
    assert "1 run: 0 finished, 1 to do" in out
    config.write_text("method: erm\n")
    for line in (["--config", str(config)], ["--method", "medic++"], ["--seed", "0"]):
        code, _, err = medic("reproduce", "paradigms", "--quick", "--dry-run", *line)
        assert (code, "would make other rows or columns" in err) == (2, True)


@pytest.mark.parametrize(
    ("asked", "changed"),
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
def test_what_follows_from_a_complete_file_follows_the_line(medic, tmp_path, asked, changed):
    given = {"target": "printed", "method": "medic++", "lr": "0.05", "iterations": "7"}

    def printed(settings):
        return medic("train", *(part for name, value in settings.items() for part in (f"--{name}", value)),
                     "--print-config")[1]  # fmt: skip

    config = tmp_path / "complete.yaml"
    config.write_text(printed(given))
    code, out, err = medic("train", "--config", str(config), *asked, "--print-config")
    assert (code, err) == (0, "")
    assert out == printed(given | changed)
    config.write_text(out)  # from here on it is the same
    assert medic("train", "--config", str(config), "--iterations", "9", "--print-config")[1] == printed(
        given | changed | {"iterations": "9"}
    )


def test_other_codebases_spellings(medic):
    plain = medic("train", "--target", "street", "--method", "erm", "--known", "0", "1", "--print-config")
    assert plain[0] == 0
    aliased = medic(
        "train", "--target-domains", "street", "--algorithm", "erm", "--known-classes", "0", "1", "--print_config"
    )
    assert aliased == plain
    assert medic("train", "--target_domains", "street", "--algorithm=erm", "--known=0,1", "--print-config") == plain
    for spelling in SPELLINGS:
        assert spelling in " ".join(medic("train", "--help")[1].split())
