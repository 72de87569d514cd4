"""One pass of a model over images, in evaluation mode."""

import torch
from torch import Tensor, nn

from medic.models import Preprocessing
from medic.outputs import Output


@torch.inference_mode()
def infer(
    model: nn.Module, images: Tensor, indices: Tensor, preprocessing: Preprocessing, device: torch.device
) -> Output:
    """The outputs of a model for some uint8 images (N, 3, H, W), on the CPU, in the order of `indices`."""
    training = model.training
    model.eval()
    batches = []
    for part in indices.split(256):
        inputs = preprocessing(images[part].to(device).float() / 255).contiguous(memory_format=torch.channels_last)
        output = Output.of(model(inputs))
        batches.append(Output(*(None if value is None else value.cpu() for value in output)))  # type: ignore[arg-type]
    model.train(training)
    return Output.cat(batches)
