"""One pass of a model over images, in evaluation mode."""

import torch
from torch import Tensor, nn

from medic.data import Images
from medic.models import Preprocessing
from medic.outputs import Output


@torch.inference_mode()
def infer(
    model: nn.Module, images: Images, indices: Tensor, preprocessing: Preprocessing, device: torch.device
) -> Output:
    """The outputs of a model for the images at `indices`, in this order, on the CPU."""
    training = model.training
    model.eval()
    batches = []
    parts = indices.split(256)
    for part, following in zip(parts, (*parts[1:], indices[:0]), strict=True):
        images.expect(part)
        images.expect(following)
        inputs = preprocessing(images.gather(part, device).float() / 255).contiguous(memory_format=torch.channels_last)
        output = Output.of(model(inputs))
        batches.append(Output(*(None if value is None else value.cpu() for value in output)))  # type: ignore[arg-type]
    model.train(training)
    return Output.cat(batches)
