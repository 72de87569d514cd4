"""Weights by name: those that timm has for a backbone, fetched once from its hub."""

from pathlib import Path
from typing import Any

from medic.errors import MedicError, closest, first_line
from medic.models.backbones import OURS, import_timm

V1 = "imagenet-v1"
"""ImageNet weights as most of the field starts from: torchvision's first ones, timm's `tv_in1k`."""
FILE = "model.safetensors"


def find_weights(backbone: str, given: str) -> Path:
    """The file that is meant: a local one, or that of a name such as `imagenet-v1`, `tv_in1k` or `resnet50.tv_in1k`.

    What was fetched before is taken from the hub's cache without asking.
    """
    if Path(given).is_file():
        return Path(given)
    if backbone in OURS:
        raise MedicError(f"weights {given} do not exist: {backbone} has none by name, so give a file")
    timm = import_timm(backbone)
    architecture = backbone.partition(".")[0]
    tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
    tag = "tv_in1k" if given == V1 else given.removeprefix(f"{architecture}.")
    if tag not in tags:
        nearest = closest(given, [V1, *tags] if "tv_in1k" in tags else tags)
        hint = f"did you mean {nearest!r}?" if nearest else f"by name {backbone} has {', '.join(tags) or 'none'}"
        raise MedicError(f"weights {given} do not exist, {hint}")
    name = f"{architecture}.{tag}"
    wanted, made = timm.get_pretrained_cfg(name), timm.get_pretrained_cfg(backbone)
    if (wanted.mean, wanted.std) != (made.mean, made.std):
        raise MedicError(f"weights {name} want images normalised otherwise than {backbone}: use --backbone {name}")
    return _fetched(name, wanted)


def _fetched(name: str, wanted: Any) -> Path:
    """The file of some weights in the hub's cache."""
    import huggingface_hub as hub

    if wanted.hf_hub_id is None:
        raise MedicError(f"weights {name} are not on the hub: get {wanted.url} and give it as --weights FILE")
    repository, file = wanted.hf_hub_id, wanted.hf_hub_filename or FILE
    cached = hub.try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return Path(cached)
    url = hub.hf_hub_url(repository, file)
    try:
        hub.get_hf_file_metadata(url)  # a hub that cannot be reached would be tried again for half a minute
        return Path(hub.hf_hub_download(repository, file))
    except Exception as error:  # of whatever client the installed version of the hub's library has
        reason = first_line(error)
        raise MedicError(
            f"weights {name} cannot be fetched ({reason}): get {url} elsewhere and give it as --weights FILE"
        ) from error
