"""Where the benchmarks can be had: addresses and checksums that others have published, as values.

A file's `checksum` is one that somebody publishes for that very file, and says who; None means that nobody is known
to. `medic.data.fetch` then trusts the first download and holds later ones to it.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Unpacking = Literal["zip", "tar", "tar.gz", "gz", "plain"]
_GB = 10**9


@dataclass(frozen=True)
class Checksum:
    """A published hash of a file, and who publishes it."""

    algorithm: Literal["sha256", "md5"]
    digest: str
    by: str


@dataclass(frozen=True)
class File:
    """One file to download, and how it is unpacked `into` which folder of the benchmark's."""

    url: str
    name: str
    unpacking: Unpacking | None
    """None where the file's content decides."""
    checksum: Checksum | None = None
    into: str = "."


@dataclass(frozen=True)
class Source:
    """The files that together are a whole benchmark, and where their addresses are `documented`."""

    documented: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class Limits:
    """What an archive may become: bytes and files in all, and bytes for every byte of the archive."""

    size: int
    files: int
    ratio: int = 100


@dataclass(frozen=True)
class Sorting:
    """How images that come in one folder are sorted into `location_<place>/<class>`: by COCO annotations."""

    images: str
    """The folder."""
    annotations: tuple[str, ...]
    """Patterns of the annotations' names."""
    places: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Download:
    """Everything about getting one benchmark."""

    sources: tuple[Source, ...]
    """Alternatives, tried in this order."""
    layouts: tuple[tuple[str, ...], ...]
    """Names that lie side by side in the benchmark's folder: one of these sets. Case, spaces, _ and - do not matter."""
    contents: str
    """What belongs into the benchmark's folder, for somebody who puts it there by hand."""
    page: str
    """Where somebody would look for it."""
    limits: Limits
    sorting: Sorting | None = None
    """What is left to do when everything is unpacked."""


def drive(identifier: str, resource_key: str | None = None) -> str:
    """The download address of a file on Google Drive."""
    key = f"&resourcekey={resource_key}" if resource_key else ""
    return f"https://drive.google.com/uc?export=download&id={identifier}{key}"


def direct(url: str) -> str:
    """The address that a browser's "share" link to a file on Google Drive stands for; any other one as it is."""
    parts = urlsplit(url)
    if parts.hostname not in ("drive.google.com", "docs.google.com"):
        return url
    query = parse_qs(parts.query)
    in_path = re.match(r"/file/d/([\w-]+)", parts.path)
    identifier = in_path[1] if in_path else query.get("id", [""])[0]
    return drive(identifier, query.get("resourcekey", [None])[0]) if identifier else url


def _azure(name: str) -> str:
    """An address on the storage of Jindong Wang, who keeps copies of several benchmarks."""
    return f"https://wjdcloud.blob.core.windows.net/dataset/{name}"


def _single(
    documented: str, url: str, name: str, checksum: Checksum | None = None, unpacking: Unpacking = "zip"
) -> Source:
    """A source of one archive."""
    return Source(documented, (File(url, name, unpacking, checksum),))


_DOMAINBED = "facebookresearch/DomainBed, domainbed/scripts/download.py"
_DASSL = "KaiyangZhou/Dassl.pytorch, DATASETS.md"
_AZURE = "microsoft/PersonalizedFL, README.md; jindongwang/transferlearning, issue 411"
_TFDS = "tensorflow/datasets"
_LARSKUE = "LarsKue/context-aware-domain-generalization, src/adaptive_dg/datasets"


# PACS

_PACS_SHA256 = Checksum(
    "sha256",
    "0dc9d0176fa27c9b4504e7c2e962aebe6a79ed0c1819b84148786e590f87e102",
    by="therealshaheer11-glithc/ATML-Assignment-1",
)
_PACS_MD5 = Checksum("md5", "fd5db817f7cdafeef3bfd525aaf9b42e", by=_LARSKUE)

_PACS = Download(
    sources=(
        _single(_DASSL, drive("1m4X4fROCCXMO0lRLrr6Zz9Vb3974NWhE"), "pacs.zip", _PACS_SHA256),
        _single(_DOMAINBED, drive("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"), "PACS.zip", _PACS_MD5),
        _single(_AZURE, _azure("PACS.zip"), "PACS.zip"),
        _single(
            "GT-RIPL/DomainGeneralization-Stylization, issue 3",
            "https://github.com/MachineLearning2020/Homework3-PACS/archive/refs/heads/master.zip",
            "Homework3-PACS.zip",
        ),
    ),
    layouts=(("images", "splits"), ("art_painting", "cartoon", "photo", "sketch")),
    contents="<domain>/<class>/<image> for the domains art_painting, cartoon, photo and sketch",
    page="https://dali-dl.github.io/project_iccv2017.html",
    limits=Limits(size=2 * _GB, files=50_000),
)


# Office-Home

_OFFICE_HOME_MD5 = Checksum("md5", "b1c14819770c4448fd5b6d931031c91c", by=_LARSKUE)
_OFFICE_HOME_DOMAINS = {
    "Art.tgz": "4691878067d04755beab",
    "Clipart.tgz": "0d41e7da4558408ea5aa",
    "Product.tgz": "76186deacd7c4fa0a679",
    "Real_World.tgz": "dee961894cc64b1da1d7",
}

_OFFICE_HOME = Download(
    sources=(
        _single(
            "hemanthdv.org/officeHomeDataset.html",
            drive("0B81rNlvomiwed0V1YUxQdC1uOTg", "0-2SNWq0CDAuWOBRRBL7ZZsw"),
            "OfficeHomeDataset_10072016.zip",
            _OFFICE_HOME_MD5,
        ),
        _single(_DOMAINBED, drive("1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC"), "office_home.zip", _OFFICE_HOME_MD5),
        _single(_AZURE, _azure("OfficeHome.zip"), "OfficeHome.zip"),
        Source(
            "thuml/Transfer-Learning-Library, tllib/vision/datasets/officehome.py",
            tuple(
                File(f"https://cloud.tsinghua.edu.cn/f/{key}/?dl=1", name, "tar.gz")
                for name, key in _OFFICE_HOME_DOMAINS.items()
            ),
        ),
    ),
    layouts=(("Art", "Clipart", "Product", "Real World"),),
    contents="<domain>/<class>/<image> for the domains Art, Clipart, Product and Real World",
    page="https://www.hemanthdv.org/officeHomeDataset.html",
    limits=Limits(size=8 * _GB, files=100_000),
)


# VLCS

_VLCS_MD5 = Checksum("md5", "8870171eba660927d9668f4e515928e4", by=_LARSKUE)

_VLCS = Download(
    sources=(
        _single(_DOMAINBED, drive("1skwblH1_okBwxWxmRsp9_qi15hyPpxg8"), "VLCS.tar.gz", _VLCS_MD5, "tar.gz"),
        _single(_AZURE, _azure("VLCS/VLCS.zip"), "VLCS.zip"),
        _single(_DASSL, drive("1r0WL5DDqKfSPp9E3tRENwHaXNs1olLZd"), "vlcs.zip"),
    ),
    layouts=(("Caltech101", "LabelMe", "SUN09", "VOC2007"), ("CALTECH", "LABELME", "PASCAL", "SUN")),
    contents="<domain>/<class>/<image> for the domains Caltech101, LabelMe, SUN09 and VOC2007",
    page="https://www.mediafire.com/file/7yv132lgn1v267r/vlcs.tar.gz/file",
    limits=Limits(size=15 * _GB, files=100_000),
)


# TerraIncognita: four places and ten classes of the camera traps, as DomainBed chose them

_LILA = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps"
_OLD_LILA = "https://lilablobssc.blob.core.windows.net/caltechcameratraps"
_TERRA_IMAGES = "eccv_18_all_images_sm"
_TERRA_LABELS = "eccv_18_annotations.tar.gz"
_OLD_TERRA_LABELS = "caltech_camera_traps.json.zip"


def _terra_incognita(documented: str, base: str, labels: File) -> Source:
    images = f"{_TERRA_IMAGES}.tar.gz"
    return Source(documented, (labels, File(f"{base}/{images}", images, "tar.gz")))


_TERRA_INCOGNITA = Download(
    sources=(
        _terra_incognita(
            "lila.science/datasets/caltech-camera-traps; facebookresearch/DomainBed, issue 136",
            _LILA,
            File(f"{_LILA}/{_TERRA_LABELS}", _TERRA_LABELS, "tar.gz"),
        ),
        _terra_incognita(
            _DOMAINBED, _OLD_LILA, File(f"{_OLD_LILA}/labels/{_OLD_TERRA_LABELS}", _OLD_TERRA_LABELS, "zip")
        ),
    ),
    layouts=(
        (_TERRA_IMAGES, "eccv_18_annotation_files"),
        (_TERRA_IMAGES, "caltech_images_20210113.json"),
        ("location_38", "location_43", "location_46", "location_100"),
    ),
    contents="location_<place>/<class>/<image> for the places 38, 43, 46 and 100",
    page="https://lila.science/datasets/caltech-camera-traps",
    limits=Limits(size=25 * _GB, files=300_000),
    sorting=Sorting(
        images=_TERRA_IMAGES,
        annotations=("eccv_18_annotation_files/*.json", "caltech_images_*.json"),
        places=("38", "43", "46", "100"),
        classes=("bird", "bobcat", "cat", "coyote", "dog", "empty", "opossum", "rabbit", "raccoon", "squirrel"),
    ),
)


# DomainNet: the cleaned version of the images, and the lists that say what is for training and what for testing

_VISDA = "csr.bu.edu/ftp/visda/2019/multi-source"
_DOMAINNET_ARCHIVES = {
    "groundtruth/clipart.zip": "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d",
    "infograph.zip": "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa",
    "groundtruth/painting.zip": "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015",
    "quickdraw.zip": "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84",
    "real.zip": "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63",
    "sketch.zip": "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc",
}
_DOMAINNET_LISTS = {
    "clipart_train.txt": "affdadf5f95a7583e6b98030a3d35007e2613ee4dd942393c5a705ec2b429312",
    "clipart_test.txt": "62c8e36aaba1c41ad9e249099739707220a44c08f167b37ef420f34a31628a6b",
    "infograph_train.txt": "36b44cbd41a2915e0dc73b4f4be8862a6f3c220f93c8d63fb2439beeae3aefda",
    "infograph_test.txt": "413cfa54ac92e7e6b242f4f09fbd9c8ace85c4deaf3cb6c81ff6b68264460136",
    "painting_train.txt": "f1da38d50a702fddf1329f85bc607d7a2abcae7e6aec75e1fd49cc1bd340d47b",
    "painting_test.txt": "11472b13b5188e09f06918b12eebb660588c97a20e43e268d9b02e3e37eb8f97",
    "quickdraw_train.txt": "3a5edd3bc215772010eebc87f158707703dd7e48091d13b816af81326a9d1c0f",
    "quickdraw_test.txt": "2a00a60650a453c65c356da748fec54084a197272137c440e7d52d08947357bf",
    "real_train.txt": "19d483256d24aef19e581b65eda8333fd918aef3eb733fe499ff384120e3a289",
    "real_test.txt": "2b3f75bcde309aeb5931292084b2162e936b5f189e3bb1ad716f0f74c460864c",
    "sketch_train.txt": "72f4bc6afa5702a1ccba800d0053c1427de87439dfaf246dbc9a2e71abfec54f",
    "sketch_test.txt": "3fb48fca18c507c4321f007c3f62b308ec232ff6928cbfe2af64e76ec366e840",
}


def _domainnet(scheme: str, documented: str) -> Source:
    by = f"{_TFDS}, image_classification/domainnet/checksums.tsv"
    archives = [
        File(f"{scheme}://{_VISDA}/{path}", path.rpartition("/")[2], "zip", Checksum("sha256", digest, by))
        for path, digest in _DOMAINNET_ARCHIVES.items()
    ]
    lists = [
        File(f"{scheme}://{_VISDA}/domainnet/txt/{name}", name, "plain", Checksum("sha256", digest, by), into="splits")
        for name, digest in _DOMAINNET_LISTS.items()
    ]
    return Source(documented, (*lists, *archives))


_DOMAINNET = Download(
    sources=(_domainnet("https", "ai.bu.edu/M3SDA"), _domainnet("http", f"{_DOMAINBED}; {_TFDS}")),
    layouts=(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),),
    contents="<domain>/<class>/<image> for the domains clipart, infograph, painting, quickdraw, real and sketch "
    "(the cleaned version), and the lists <domain>_<train|test>.txt in splits",
    page="https://ai.bu.edu/M3SDA/",
    limits=Limits(size=60 * _GB, files=2_000_000),
)


# Digits-DG

_DIGITS_DG = Download(
    sources=(
        _single(_DASSL, drive("15V7EsHfCcfbKgsDmzQKj_DfXt_XYp_P7"), "digits_dg.zip"),
        _single(
            "jindongli-Ai/Survey_on_CLIP-Powered_Domain_Generalization_and_Adaptation, README.md",
            "https://csip.fzu.edu.cn/files/datasets/SSDG/digits_dg.zip",
            "digits_dg.zip",
        ),
    ),
    layouts=(("mnist", "mnist_m", "svhn", "syn"),),
    contents="<domain>/<train|val>/<class>/<image> for the domains mnist, mnist_m, svhn and syn",
    page="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
    limits=Limits(size=2 * _GB, files=200_000),
)


# MNIST, from which Colored MNIST is made

_MNIST_FILES = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def _mnist(base: str, documented: str) -> Source:
    by = f"{_TFDS}, url_checksums/mnist.txt"
    return Source(
        documented,
        tuple(
            File(f"{base}/{name}.gz", f"{name}.gz", "gz", Checksum("sha256", digest, by))
            for name, digest in _MNIST_FILES.items()
        ),
    )


_CMNIST = Download(
    sources=(
        _mnist("https://ossci-datasets.s3.amazonaws.com/mnist", "pytorch/vision, torchvision/datasets/mnist.py"),
        _mnist("https://storage.googleapis.com/cvdf-datasets/mnist", f"{_TFDS}, image_classification/mnist.py"),
        _mnist("http://yann.lecun.com/exdb/mnist", "pytorch/vision, torchvision/datasets/mnist.py"),
    ),
    layouts=(tuple(_MNIST_FILES),),
    contents=f"MNIST's four files, unpacked: {', '.join(_MNIST_FILES)}",
    page="https://github.com/cvdfoundation/mnist",
    limits=Limits(size=_GB // 5, files=100),
)


DOWNLOADS: dict[str, Download] = {
    "pacs": _PACS,
    "office-home": _OFFICE_HOME,
    "vlcs": _VLCS,
    "terra-incognita": _TERRA_INCOGNITA,
    "domainnet": _DOMAINNET,
    "digits-dg": _DIGITS_DG,
    "cmnist": _CMNIST,
}
