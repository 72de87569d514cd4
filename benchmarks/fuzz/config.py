"""Random and hostile texts for YAML files and for options of the command line."""

import functools
import importlib
import random
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fuzz.damage import damage, replace_value
from benchmarks.fuzz.harness import Door, command
from benchmarks.fuzz.small_run import settings, write_images

TEXTS = (
    "", " ", "x", "=", ",", "|", "0", "-1", "1e999", "nan", ".nan", ".inf", "-.inf", "1" * 5000, "0x" + "f" * 5000,
    "1:" * 200 + "1", "0b" * 9, "0..2", "2..0", "0..1000000000000", "0.." + "9" * 5000, "1_000", "2026-01-01",
    "2026-99-99", "~", "null", "true", "yes", "[", "]", "{", "}", "[" * 2000, "{" * 2000, "[" * 2000 + "]" * 2000,
    "{a: " * 500 + "1" + "}" * 500, "'", '"', "\\", "\t", "\n", "\0", "\x1b[2J", "\u202e", "\ufeff", "\udcff",
    "é" * 300, "x" * 10**5, "*a", "&a x", "&a [*a]", "{&a x: *a}", "<<: *a", "!!python/object/apply:os.system [x]",
    "!!binary x", "!!x y", "!!set {a}", "? a", "a: b: c", "- a\n- b", "--- a\n--- b", "%YAML 9.9\n--- a", "# x", "@x",
    "`x`", "$(x)", "${x}", "%(x)s", "{0}", "../../x", "/", "/dev/zero", "/proc/self/mem", "lr=1", "lr=1,lr=2",
    "weight=" + "9" * 5000, "weight=[1", "a=b=c", "=1", "weight=1e400", "weight=nan", "decay=true", "seed=0,1",
    "seed=0..3", "seed=1|2", "method=erm,vrex", "steps=3,3,3|9", "target=each", "sources=each",
    "seed=" + "1," * 500 + "1", "output=x", "seed=0..1000000000000", "seed=[[[", "lr=&a [*a]", "resnet18.nope",
    "convnet.x", "x/y", "hf-hub:x/y", "cuda:99", "erm+vrex", "auto", "oracle-10",
)  # fmt: skip
BOMB = "[&a0 [x, x], " + ", ".join(f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)) + "]"


def _dump(values: object, **options: Any) -> str:
    """Return a value as YAML; in C where possible, because Python takes a third of the time of an input."""
    try:
        return str(yaml.dump(values, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), **options))
    except UnicodeError:  # half of a surrogate pair
        return str(yaml.safe_dump(values, **options))


def make_yaml(base: dict[str, object], draw: random.Random) -> bytes:
    """Return the text of a configuration or a sweep with something wrong."""
    from medic.config.settings import SETTINGS

    chance = draw.random()
    if chance < 0.3:
        text = _dump(replace_value(base, draw), allow_unicode=True)
    elif chance < 0.7:
        lines = _dump(base).splitlines()
        for _ in range(draw.randint(1, 3)):
            name = draw.choice([*SETTINGS, "span", "variants", "x", "<<", "? x", "&a x", "learning_rate", "lr", "seed"])
            lines.insert(draw.randrange(len(lines) + 1), f"{name}: {draw.choice(TEXTS)}")
        text = "\n".join(lines)
    elif chance < 0.75:
        text = f"{draw.choice(['lr', 'method', 'known', 'hparams'])}: {BOMB}\n"
    else:
        return damage(_dump(base).encode(draw.choice(("utf-8", "utf-16", "utf-8-sig"))), draw)
    return text.encode(errors="surrogatepass")


def _reuse_parsers() -> None:
    """Make the parser of a command once, which takes a third of the time."""
    main: Any = importlib.import_module("medic.cli.main")
    main.make_parser = functools.cache(main.make_parser)


def prepare(folder: Path) -> None:
    """Write the images, and run each command once."""
    write_images(folder)
    base = [f"--{name.replace('_', '-')}={value}" for name, value in _base(folder).items()]
    timm = ["train", *base, "--backbone=resnet18", "--print-config"]  # imports it, which takes seconds
    for given in (timm, ["train", *base, "--print-config"], ["sweep", *base, "--dry-run"]):
        code, _, err = command(*given)
        assert code == 0, err


def _base(folder: Path) -> dict[str, object]:
    return {**settings(folder, output=str(folder / "output")), "known": "cat,dog"}


def attempt(folder: Path, draw: random.Random) -> bool:
    """Give a text to a command that trains nothing."""
    from medic.config.settings import SETTINGS

    base, file = _base(folder), folder / "file.yaml"
    kind = draw.choice(("config", "sweep", "span", "option", "option", "hparams"))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in base.items()]
    if kind in ("config", "sweep"):
        if kind == "sweep" and draw.random() < 0.5:
            base = {**base, "span": {"seed": [0, 1]}, "variants": [{"method": "erm"}, {"lr": 0.1}]}
        file.write_bytes(make_yaml(base, draw))
        given = (
            ["train", "--print-config", "--config", str(file)]
            if kind == "config"
            else ["sweep", str(file), "--dry-run"]
        )
    elif kind == "span":
        given = ["sweep", *options, "--dry-run", "--span", *(draw.choice(TEXTS) for _ in range(draw.randint(1, 2)))]
    elif kind == "hparams":
        text = (
            f"{draw.choice(('weight', 'x', 'inner_lr', 'anneal'))}={draw.choice(TEXTS)}"
            if draw.random() < 0.5
            else draw.choice(TEXTS)
        )
        given = ["train", *options, "--method=vrex", "--print-config", f"--hparams={text}"]
    else:
        name = draw.choice([*SETTINGS, "config", "x"]).replace("_", "-")
        text = draw.choice(TEXTS)
        given = [
            "train",
            *options,
            "--print-config",
            *([f"--{name}={text}"] if draw.random() < 0.5 else [f"--{name}", text]),
        ]
    return command(*given)[0] == 0


DOOR = Door("config", prepare, attempt, 2000, _reuse_parsers)
