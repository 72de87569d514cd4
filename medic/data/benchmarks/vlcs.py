"""VLCS: photographs from four datasets (Fang et al., 2013)."""

from medic.data.benchmarks.base import AZURE, DASSL, DOMAINBED, Benchmark, Download, Layout, azure, drive
from medic.data.benchmarks.layouts import read_layouts

BENCHMARK = Benchmark(
    name="vlcs",
    description="photographs of five classes from four collections",
    reader=read_layouts,
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    classes=("bird", "car", "chair", "dog", "person"),
    domain_aliases={"CALTECH": "Caltech101", "SUN": "SUN09", "PASCAL": "VOC2007"},
    class_aliases={"0": "bird", "1": "car", "2": "chair", "3": "dog", "4": "person"},
    lr=9e-4,
    counts={
        "Caltech101": (237, 123, 118, 67, 870),
        "LabelMe": (80, 1209, 88, 42, 1237),
        "SUN09": (20, 932, 1036, 30, 1264),
        "VOC2007": (330, 699, 428, 420, 1499),
    },
    layouts=(
        Layout("folders", ("VLCS", "vlcs")),
        Layout("train, crossval and test folders", ("VLCS", "vlcs"), has_parts=True),
    ),
    domainbed="VLCS",
    download=Download(
        mirrors={
            DOMAINBED: (
                drive("1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", "VLCS.tar.gz", "md5:8870171eba660927d9668f4e515928e4"),
            ),
            AZURE: (azure("VLCS/VLCS.zip"),),
            DASSL: (drive("1r0WL5DDqKfSPp9E3tRENwHaXNs1olLZd", "vlcs.zip"),),
        },
        page="https://www.mediafire.com/file/7yv132lgn1v267r/vlcs.tar.gz/file",
        contents="<domain>/<class>/<image> for the domains Caltech101, LabelMe, SUN09 and VOC2007",
    ),
)
