"""PACS: photos, art paintings, cartoons and sketches (Li et al., 2017)."""

from collections.abc import Mapping

from medic.data.benchmarks.base import AZURE, DASSL, DOMAINBED, Benchmark, Download, File, Layout, azure, drive
from medic.data.benchmarks.layouts import read_layouts
from medic.data.dataset import Part

_FOLDERS_OF_LISTS = ("../splits", "splits", "../PACS_list/crossval", "PACS_list/crossval")
_LISTS: Mapping[Part, tuple[str, ...]] = {
    "val": tuple(f"{folder}/*_crossval_kfold.txt" for folder in _FOLDERS_OF_LISTS)
}
# Published by therealshaheer11-glithc/ATML-Assignment-1.
_CHECKSUM = "sha256:0dc9d0176fa27c9b4504e7c2e962aebe6a79ed0c1819b84148786e590f87e102"
_HOMEWORK = "https://github.com/MachineLearning2020/Homework3-PACS/archive/refs/heads/master.zip"

BENCHMARK = Benchmark(
    name="pacs",
    description="art, cartoons, photographs and sketches of seven classes",
    reader=read_layouts,
    domains=("art_painting", "cartoon", "photo", "sketch"),
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    split="pacs-6-1",
    counts={
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    },
    layouts=(
        Layout("folders", ("PACS", "pacs"), lists=_LISTS),
        Layout("images and lists", ("pacs/images", "images"), lists=_LISTS),
    ),
    dropped=frozenset({"sketch/dog/n02103406_4068-1.png"}),
    domainbed="PACS",
    download=Download(
        mirrors={
            DASSL: (drive("1m4X4fROCCXMO0lRLrr6Zz9Vb3974NWhE", "pacs.zip", _CHECKSUM),),
            DOMAINBED: (
                drive("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd", "PACS.zip", "md5:fd5db817f7cdafeef3bfd525aaf9b42e"),
            ),
            AZURE: (azure("PACS.zip"),),
            "GT-RIPL/DomainGeneralization-Stylization, issue 3": (File(_HOMEWORK, "Homework3-PACS.zip"),),
        },
        page="https://dali-dl.github.io/project_iccv2017.html",
        contents="<domain>/<class>/<image> for the domains art_painting, cartoon, photo and sketch",
        markers=(("images", "splits"),),
    ),
)
