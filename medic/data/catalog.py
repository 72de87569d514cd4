"""The benchmarks by name, each with the paper's settings for it, and three ways to bring one's own images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from medic.data import cmnist, digits
from medic.data.cache import Arrays, cached
from medic.data.dataset import Built, Drawn, Listed, Opened
from medic.data.layouts import Found, Layout, Naming, find, missing_domains
from medic.data.listing import Part
from medic.data.readers import check_root, read_folder, read_lists, read_table
from medic.data.sources import DOWNLOADS
from medic.errors import MedicError, check_choice

Counts = Mapping[str, tuple[int, ...]]
"""Images per domain: one number per class, or one for all of them."""


@dataclass(frozen=True)
class Benchmark:
    """A dataset that can be asked for by name, and what a run on it uses unless told otherwise."""

    name: str
    description: str
    open: Callable[["Benchmark", Path | None, int], Opened]
    domains: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    split: str | None = None
    """The paper's split into known and unknown classes, by name; None where all are known."""
    image_size: int | None = None
    """The side of an image in pixels; None for what the backbone wants."""
    channels: int = 3
    backbone: str = "resnet50"
    augment: str = "medic"
    lr: float = 1.8e-3
    """The rate of outer SGD on the mean task risk: the paper's ε·α·t."""
    counts: Counts = field(default_factory=dict)
    images: int | None = None
    """Images in all, where only this is published."""
    layouts: tuple[Layout, ...] = ()
    naming: Naming | None = None
    dropped: frozenset[str] = frozenset()
    """Images that are known to be damaged."""
    seeded: bool = False
    """Whether its images depend on the seed of a run."""
    unique: bool = False
    """Whether images that occur twice in a domain are left out."""
    domainbed: str | None = None
    """Its name among DomainBed's datasets, whose scripts drop records of others."""


def needs_root(bench: Benchmark, root: Path | None) -> Path:
    """The root that was given, or an error that asks for it."""
    if root is None:
        what = "the CSV or Parquet file" if bench.name == "table" else "the folder that its images are in"
        raise MedicError(f"dataset {bench.name!r} needs --root, {what}{_fetched(bench)}")
    return root


def _fetched(bench: Benchmark) -> str:
    """How else one gets a benchmark, where there is a way."""
    return f"; `medic data fetch {bench.name} --root DIR` gets it" if bench.name in DOWNLOADS else ""


def locate(bench: Benchmark, root: Path) -> Found:
    """Find a benchmark's images below a root, or say what is there instead."""
    assert bench.naming is not None
    check_root(root, f": give the folder that {bench.name} is in{_fetched(bench)}")
    found = find(bench.name, root, bench.layouts, bench.naming, bench.dropped)
    if found is not None:
        return found
    for other in BENCHMARKS.values():
        if other.naming and other is not bench and find(other.name, root, other.layouts, other.naming, other.dropped):
            raise MedicError(f"root {root} holds {other.name}, not {bench.name}: use --dataset {other.name}")
    missing = ", ".join(name for name in bench.domains if name in missing_domains(root, bench.layouts, bench.naming))
    if not missing:
        raise MedicError(f"root {root} has the domains of {bench.name}, but not in a layout of it; see docs/data.md")
    raise MedicError(
        f"root {root} has no folder with all domains of {bench.name}: {missing} not found{_fetched(bench)}"
    )


def _open_files(bench: Benchmark, root: Path | None, seed: int) -> Opened:
    return Listed(locate(bench, needs_root(bench, root)).listing, bench.unique)


def _open_folder(bench: Benchmark, root: Path | None, seed: int) -> Opened:
    return Listed(read_folder(needs_root(bench, root)))


def _open_lists(bench: Benchmark, root: Path | None, seed: int) -> Opened:
    return Listed(read_lists(needs_root(bench, root)))


def _open_table(bench: Benchmark, root: Path | None, seed: int) -> Opened:
    return Listed(read_table(needs_root(bench, root)))


def _open_cmnist(bench: Benchmark, root: Path | None, seed: int) -> Opened:
    place = needs_root(bench, root)
    return Built(bench.name, bench.domains, bench.classes, lambda: Drawn(*cmnist.build(place, seed)))


def _open_digits(bench: Benchmark, root: Path | None, seed: int) -> Opened:
    if root is not None:
        raise MedicError("dataset 'digits' is built in: it takes no --root")
    return Built(bench.name, bench.domains, bench.classes, _draw_digits)


def _draw_digits() -> Drawn:
    """The built-in benchmark, drawn at first use and then kept in the cache."""

    def build() -> Arrays:
        return dict(zip(("images", "domain", "label"), digits.render(), strict=True))

    arrays = cached(f"digits-v{digits.VERSION}", build)
    pixels, domain, label = (torch.from_numpy(arrays[key]) for key in ("images", "domain", "label"))
    number: dict[tuple[int, int], int] = {}
    paths = []
    for cell in zip(domain.tolist(), label.tolist(), strict=True):
        number[cell] = number.get(cell, -1) + 1
        paths.append(f"{digits.DOMAINS[cell[0]]}/{digits.CLASSES[cell[1]]}/{number[cell]:03d}")
    return Drawn(pixels, domain, label, paths)


_PACS = Naming(
    ("art_painting", "cartoon", "photo", "sketch"),
    ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
)
_PACS_LISTS: Mapping[Part, tuple[str, ...]] = {
    "val": (
        "../splits/*_crossval_kfold.txt",
        "splits/*_crossval_kfold.txt",
        "../PACS_list/crossval/*_crossval_kfold.txt",
        "PACS_list/crossval/*_crossval_kfold.txt",
    )
}
_VLCS = Naming(
    ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    ("bird", "car", "chair", "dog", "person"),
    {"CALTECH": "Caltech101", "SUN": "SUN09", "PASCAL": "VOC2007"},
    {"0": "bird", "1": "car", "2": "chair", "3": "dog", "4": "person"},
)
_OFFICE_HOME = Naming(
    ("Art", "Clipart", "Product", "Real World"),
    tuple(
        "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer "
        "Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer "
        "Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen "
        "Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda "
        "Speaker Spoon TV Table Telephone ToothBrush Toys Trash_Can Webcam".split()
    ),
)
_TERRA = Naming(
    ("location_100", "location_38", "location_43", "location_46"),
    ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"),
)
_DOMAINNET = Naming(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), ())
_DIGITS_DG = Naming(("mnist", "mnist_m", "svhn", "syn"), tuple("0123456789"))

BENCHMARKS: dict[str, Benchmark] = {
    bench.name: bench
    for bench in (
        Benchmark(
            "digits",
            "built in: digits written by hand, printed, blended into photographs, and as on house walls",
            _open_digits,
            digits.DOMAINS,
            digits.CLASSES,
            split="digits-6-4",
            image_size=digits.SIZE,
            backbone="convnet",
            augment="digits",
            lr=0.06,
            counts=dict.fromkeys(digits.DOMAINS, (120,) * 10),
        ),
        Benchmark(
            "pacs",
            "art, cartoons, photographs and sketches of seven classes",
            _open_files,
            _PACS.domains,
            _PACS.classes,
            split="pacs-6-1",
            counts={
                "art_painting": (379, 255, 285, 184, 201, 295, 449),
                "cartoon": (389, 457, 346, 135, 324, 288, 405),
                "photo": (189, 202, 182, 186, 199, 280, 432),
                "sketch": (772, 740, 753, 608, 816, 80, 160),
            },
            layouts=(
                Layout("folders", ("PACS", "pacs"), lists=_PACS_LISTS),
                Layout("images and lists", ("pacs/images", "images"), lists=_PACS_LISTS),
            ),
            naming=_PACS,
            dropped=frozenset({"sketch/dog/n02103406_4068-1.png"}),
            domainbed="PACS",
        ),
        Benchmark(
            "office-home",
            "65 objects of office and home in four styles",
            _open_files,
            _OFFICE_HOME.domains,
            _OFFICE_HOME.classes,
            split="officehome-40-25",
            counts={"Art": (2427,), "Clipart": (4365,), "Product": (4439,), "Real World": (4357,)},
            layouts=(
                Layout(
                    "folders",
                    ("office_home", "OfficeHome", "OfficeHomeDataset_10072016"),
                    lists={"val": ("../OfficeHome_list/crossval/*_val.txt", "OfficeHome_list/crossval/*_val.txt")},
                ),
                Layout("train and val folders", ("office_home_dg",), split=True),
            ),
            naming=_OFFICE_HOME,
            domainbed="OfficeHome",
        ),
        Benchmark(
            "vlcs",
            "photographs of five classes from four collections",
            _open_files,
            _VLCS.domains,
            _VLCS.classes,
            lr=9e-4,
            counts={
                "Caltech101": (237, 123, 118, 67, 870),
                "LabelMe": (80, 1209, 88, 42, 1237),
                "SUN09": (20, 932, 1036, 30, 1264),
                "VOC2007": (330, 699, 428, 420, 1499),
            },
            layouts=(
                Layout("folders", ("VLCS", "vlcs")),
                Layout("train, crossval and test folders", ("VLCS", "vlcs"), split=True),
            ),
            naming=_VLCS,
            domainbed="VLCS",
        ),
        Benchmark(
            "terra-incognita",
            "camera traps at four places; nine animals and empty",
            _open_files,
            _TERRA.domains,
            _TERRA.classes,
            lr=9e-4,
            images=24788,
            layouts=(Layout("folders", ("terra_incognita", "terra-incognita")),),
            naming=_TERRA,
            domainbed="TerraIncognita",
        ),
        Benchmark(
            "domainnet",
            "345 classes in six styles",
            _open_files,
            _DOMAINNET.domains,
            split="domainnet-100-245",
            lr=9e-4,
            counts={
                "clipart": (48129,),
                "infograph": (51605,),
                "painting": (72266,),
                "quickdraw": (172500,),
                "real": (172947,),
                "sketch": (69128,),
            },
            layouts=(
                Layout(
                    "folders",
                    ("domain_net", "domainnet", "DomainNet"),
                    lists={"test": ("*_test.txt", "splits/*_test.txt")},
                ),
            ),
            naming=_DOMAINNET,
            unique=True,
            domainbed="DomainNet",
        ),
        Benchmark(
            "digits-dg",
            "digits from MNIST, MNIST-M, SVHN and SYN",
            _open_files,
            _DIGITS_DG.domains,
            _DIGITS_DG.classes,
            split="digitsdg-6-4",
            image_size=32,
            backbone="convnet",
            augment="digits",
            lr=9e-3,
            counts=dict.fromkeys(_DIGITS_DG.domains, (600,) * 10),
            layouts=(
                Layout("train and val folders", ("digits_dg",), split=True),
                Layout("folders", ("digits_dg",)),
            ),
            naming=_DIGITS_DG,
        ),
        Benchmark(
            "cmnist",
            "MNIST below and above five, in colours that mislead; built from MNIST's idx files",
            _open_cmnist,
            cmnist.DOMAINS,
            cmnist.CLASSES,
            image_size=28,
            channels=2,
            backbone="mnist-cnn",
            augment="none",
            lr=4e-3,
            images=70_000,
            seeded=True,
            domainbed="ColoredMNIST",
        ),
        Benchmark("folder", "your own images: ROOT/<domain>/<class>/<image>", _open_folder),
        Benchmark("lists", "your own images: ROOT/<domain>.txt with a line `path label` for each", _open_lists),
        Benchmark("table", "your own images: ROOT is a CSV or Parquet file with path, class, domain, …", _open_table),
    )
}


def benchmark(name: str) -> Benchmark:
    """Look a benchmark up by name."""
    return BENCHMARKS[check_choice("dataset", name, BENCHMARKS)]
