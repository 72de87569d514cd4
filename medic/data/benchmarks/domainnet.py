"""DomainNet: 345 classes in six styles (Peng et al., 2019), in the cleaned version."""

from medic.data.benchmarks.base import DOMAINBED, TFDS, Benchmark, Download, File, Layout
from medic.data.benchmarks.layouts import read_layouts

_VISDA = "csr.bu.edu/ftp/visda/2019/multi-source"
# SHA-256, published by tensorflow/datasets, image_classification/domainnet/checksums.tsv.
_FILES = {
    "domainnet/txt/clipart_train.txt": "affdadf5f95a7583e6b98030a3d35007e2613ee4dd942393c5a705ec2b429312",
    "domainnet/txt/clipart_test.txt": "62c8e36aaba1c41ad9e249099739707220a44c08f167b37ef420f34a31628a6b",
    "domainnet/txt/infograph_train.txt": "36b44cbd41a2915e0dc73b4f4be8862a6f3c220f93c8d63fb2439beeae3aefda",
    "domainnet/txt/infograph_test.txt": "413cfa54ac92e7e6b242f4f09fbd9c8ace85c4deaf3cb6c81ff6b68264460136",
    "domainnet/txt/painting_train.txt": "f1da38d50a702fddf1329f85bc607d7a2abcae7e6aec75e1fd49cc1bd340d47b",
    "domainnet/txt/painting_test.txt": "11472b13b5188e09f06918b12eebb660588c97a20e43e268d9b02e3e37eb8f97",
    "domainnet/txt/quickdraw_train.txt": "3a5edd3bc215772010eebc87f158707703dd7e48091d13b816af81326a9d1c0f",
    "domainnet/txt/quickdraw_test.txt": "2a00a60650a453c65c356da748fec54084a197272137c440e7d52d08947357bf",
    "domainnet/txt/real_train.txt": "19d483256d24aef19e581b65eda8333fd918aef3eb733fe499ff384120e3a289",
    "domainnet/txt/real_test.txt": "2b3f75bcde309aeb5931292084b2162e936b5f189e3bb1ad716f0f74c460864c",
    "domainnet/txt/sketch_train.txt": "72f4bc6afa5702a1ccba800d0053c1427de87439dfaf246dbc9a2e71abfec54f",
    "domainnet/txt/sketch_test.txt": "3fb48fca18c507c4321f007c3f62b308ec232ff6928cbfe2af64e76ec366e840",
    "groundtruth/clipart.zip": "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d",
    "infograph.zip": "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa",
    "groundtruth/painting.zip": "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015",
    "quickdraw.zip": "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84",
    "real.zip": "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63",
    "sketch.zip": "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc",
}


def _files(scheme: str) -> tuple[File, ...]:
    """Return the training and test lists, and the image archives."""
    return tuple(
        File(f"{scheme}://{_VISDA}/{path}", checksum=f"sha256:{digest}", into="splits" if ".txt" in path else ".")
        for path, digest in _FILES.items()
    )


BENCHMARK = Benchmark(
    name="domainnet",
    description="345 classes in six styles",
    reader=read_layouts,
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
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
            "folders", ("domain_net", "domainnet", "DomainNet"), lists={"test": ("*_test.txt", "splits/*_test.txt")}
        ),
    ),
    unique=True,
    domainbed="DomainNet",
    download=Download(
        mirrors={"ai.bu.edu/M3SDA": _files("https"), f"{DOMAINBED}; {TFDS}": _files("http")},
        page="https://ai.bu.edu/M3SDA/",
        contents="<domain>/<class>/<image> for the domains clipart, infograph, painting, quickdraw, real and sketch "
        "(the cleaned version), and the lists <domain>_<train|test>.txt in splits",
    ),
)
