"""TerraIncognita: camera-trap images from four locations (Beery et al., 2018), in DomainBed's ten classes."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from medic.data.benchmarks.base import DOMAINBED, Benchmark, Download, File, Layout
from medic.data.benchmarks.layouts import read_layouts

_LOCATIONS = ("100", "38", "43", "46")
_CLASSES = ("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel")
_IMAGES = "eccv_18_all_images_sm"
_ANNOTATIONS = ("eccv_18_annotation_files/*.json", "caltech_images_*.json")
_LILA = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps"
_OLD_LILA = "https://lilablobssc.blob.core.windows.net/caltechcameratraps"


def sort_images(folder: Path) -> None:
    """Sort the images into `location_<number>/<class>` based on their COCO annotations, and remove all other images."""
    if not (folder / _IMAGES).is_dir():
        return
    for annotations in (file for pattern in _ANNOTATIONS for file in sorted(folder.glob(pattern))):
        for name, location, labels in _annotated(annotations):
            image = folder / _IMAGES / name
            for label in labels if image.is_file() else ():
                target = folder / f"location_{location}" / label / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(image, target)
            image.unlink(missing_ok=True)
    shutil.rmtree(folder / _IMAGES)


def _annotated(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name, location and classes of each image from one of the four locations."""
    content = json.loads(file.read_bytes())
    names = {category["id"]: category["name"] for category in content["categories"]}
    labels: dict[str, set[str]] = {image["id"]: set() for image in content["images"]}
    for annotation in content["annotations"]:
        labels[annotation["image_id"]].add(names[annotation["category_id"]])
    for image in content["images"]:
        if str(image["location"]) in _LOCATIONS:
            classes = sorted(labels[image["id"]].intersection(_CLASSES))
            yield Path(image["file_name"]).name, str(image["location"]), classes


BENCHMARK = Benchmark(
    name="terra-incognita",
    description="camera-trap images from four locations: nine animals and empty frames",
    reader=read_layouts,
    domains=tuple(f"location_{number}" for number in _LOCATIONS),
    classes=_CLASSES,
    lr=9e-4,
    images=24788,
    layouts=(Layout("folders", ("terra_incognita", "terra-incognita")),),
    domainbed="TerraIncognita",
    download=Download(
        mirrors={
            "lila.science/datasets/caltech-camera-traps; facebookresearch/DomainBed, issue 136": (
                File(f"{_LILA}/eccv_18_annotations.tar.gz"),
                File(f"{_LILA}/{_IMAGES}.tar.gz"),
            ),
            DOMAINBED: (
                File(f"{_OLD_LILA}/labels/caltech_camera_traps.json.zip"),
                File(f"{_OLD_LILA}/{_IMAGES}.tar.gz"),
            ),
        },
        page="https://lila.science/datasets/caltech-camera-traps",
        contents="location_<number>/<class>/<image> for the locations 38, 43, 46 and 100",
        markers=((_IMAGES, "eccv_18_annotation_files"), (_IMAGES, "caltech_images_20210113.json")),
        prepare=sort_images,
    ),
)
