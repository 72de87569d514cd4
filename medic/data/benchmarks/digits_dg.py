"""Digits-DG: digits from four datasets (Zhou et al., 2020)."""

from medic.data.benchmarks.base import DASSL, Benchmark, Download, File, Layout, drive
from medic.data.benchmarks.layouts import read_layouts

_DOMAINS = ("mnist", "mnist_m", "svhn", "syn")

BENCHMARK = Benchmark(
    name="digits-dg",
    description="digits from MNIST, MNIST-M, SVHN and SYN",
    reader=read_layouts,
    domains=_DOMAINS,
    classes=tuple("0123456789"),
    split="digitsdg-6-4",
    image_size=32,
    backbone="convnet",
    augment="digits",
    lr=9e-3,
    counts=dict.fromkeys(_DOMAINS, (600,) * 10),
    layouts=(Layout("train and val folders", ("digits_dg",), has_parts=True), Layout("folders", ("digits_dg",))),
    download=Download(
        mirrors={
            DASSL: (drive("15V7EsHfCcfbKgsDmzQKj_DfXt_XYp_P7", "digits_dg.zip"),),
            "jindongli-Ai/Survey_on_CLIP-Powered_Domain_Generalization_and_Adaptation, README.md": (
                File("https://csip.fzu.edu.cn/files/datasets/SSDG/digits_dg.zip"),
            ),
        },
        page="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
        contents="<domain>/<train|val>/<class>/<image> for the domains mnist, mnist_m, svhn and syn",
    ),
)
