"""Make torchvision importable beside a torch build it was not compiled for.

The package index's torchvision is built for CUDA. Beside a CPU build of torch its compiled part does not load, and
importing torchvision, or timm, fails with "operator torchvision::nms does not exist". Nothing here uses the operators
of that part, so declaring them is enough. Call `ensure` before the first import of torchvision or timm.
"""

import importlib
import sys

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a library that is garbage collected takes its operators with it


def ensure() -> None:
    """Import torchvision, declaring the operators that its compiled part is missing if, and only if, it must."""
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
