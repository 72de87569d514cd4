"""Save the outputs of finished runs for augmented views of their images, which `benchmarks.thresholds` reads.

    python -m benchmarks.views runs/digits runs/pacs --views 4

`views.npz` beside each run's predictions holds outputs (views, N, …) for validation and target images, augmented as in
training.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from medic.config.resolve import resolve
from medic.config.settings import SETTINGS
from medic.data.augment import make_augmentation
from medic.runs.data import divide_images, load_images
from medic.runs.run import Run
from medic.training.inference import LARGE_BATCH
from medic.utils.outputs import Output

FILE = "views.npz"


@torch.no_grad()
def write_views(run: Run, views: int, device: str) -> None:
    """Write the outputs of a run for augmented views of its validation and target images."""
    settings = {name: value for name, value in run.settings.items() if name in SETTINGS}
    plan = resolve({**settings, "device": device, "weights": None})
    place = plan.device
    dataset = load_images(plan, place)
    problem, model = divide_images(plan, dataset), run.model.to(place).eval()
    augmentation, generator = make_augmentation(run.settings["augment"]), torch.Generator().manual_seed(0)
    arrays = {}
    for split, samples in {"validation": problem.validation, "target": problem.target}.items():
        outputs = []
        for positions in samples.indices.repeat(views).split(LARGE_BATCH):
            pixels = dataset.images.gather(positions, place).float() / 255
            varied = augmentation(pixels, generator, run.preprocessing.size)
            outputs.append(Output.of(model(run.preprocessing(varied)))._replace(features=None, branches=None))
        output = Output.cat(outputs).map(lambda rows: rows.cpu().unflatten(0, (views, -1)))
        arrays |= {f"{split}/{name}": part.numpy() for name, part in output._asdict().items() if part is not None}
    np.savez_compressed(run.path / FILE, **{name: part.astype(np.float16) for name, part in arrays.items()})


def read_views(run: Run, split: str) -> list[Output] | None:
    """Return the outputs of a run for each view of the images of a split, or None if they were not saved."""
    if not (run.path / FILE).exists():
        return None
    with np.load(run.path / FILE) as file:
        parts = {
            name.split("/")[1]: torch.from_numpy(file[name].astype(np.float32))
            for name in file
            if name.startswith(f"{split}/")
        }
    return [Output(**{name: part[view] for name, part in parts.items()}) for view in range(len(parts["logits"]))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    for path in sorted(done.parent for folder in arguments.folders for done in folder.glob("*/done")):
        if not (path / FILE).exists():
            write_views(Run(path), arguments.views, arguments.device)
