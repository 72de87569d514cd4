"""Make torchvision importable next to a torch build that it was not compiled for.

The torchvision wheel on PyPI is built for CUDA. Its compiled extension does not load with a CPU build of torch, and
importing torchvision or timm fails with "operator torchvision::nms does not exist". medic does not use this extension's
operators, so declaring them is enough. Call `ensure` before the first import of torchvision or timm.
"""

import importlib
import sys

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # keeps the declared operators alive


def ensure() -> None:
    """Import torchvision. If its compiled extension does not load, declare the missing operators first."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(name + _SCHEMA)
        _declared.append(library)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        importlib.import_module("torchvision")
