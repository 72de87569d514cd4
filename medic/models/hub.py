"""Named weights: timm weights for a backbone, downloaded once from the Hugging Face Hub."""

from pathlib import Path
from typing import Any

from medic.errors import MedicError, closest, first_line
from medic.models.backbones import OURS, import_timm, native_size
from medic.utils.files import check_weights_file

V1 = "imagenet-v1"
"""Name of the usual ImageNet weights: torchvision's first version, timm's `tv_in1k`."""
SOURCES = {
    "convnet": "none, trained from scratch",
    "mnist-cnn": "none, trained from scratch",
    "gfnet_h_ti": (
        "GFNet-H-Ti in the Model Zoo of https://github.com/raoyongming/GFNet, as a .pth or .safetensors file: "
        "--weights FILE"
    ),
}
"""Sources of the pretrained weights for built-in backbones."""


def find_weights(backbone: str, weights: str) -> Path:
    """Return the path of a weights file. Downloads named weights unless they are cached.

    `weights` is a local file, or a name such as `imagenet-v1`, `tv_in1k` or `resnet50.tv_in1k`. Cached weights are used
    without contacting the hub.
    """
    if Path(weights).is_file():
        return Path(weights)
    if Path(weights).is_dir():
        raise MedicError(f"weights {weights} is a folder: pass a file in it")
    if backbone in OURS:
        raise MedicError(f"weights {weights} not found; {backbone} has no named weights, so pass a file")
    check_weights_file(weights)
    timm = import_timm(backbone)
    architecture = backbone.partition(".")[0]
    tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
    tag = "tv_in1k" if weights == V1 else weights.removeprefix(f"{architecture}.")
    if tag not in tags:
        names = [V1, *tags] if "tv_in1k" in tags else tags
        nearest = closest(weights, names)
        hint = (
            f"did you mean {nearest!r}?" if nearest else f"named weights for {backbone}: {', '.join(names) or 'none'}"
        )
        raise MedicError(f"weights {weights} not found; {hint}")
    name = f"{architecture}.{tag}"
    wanted, made = timm.get_pretrained_cfg(name), timm.get_pretrained_cfg(backbone)
    if (wanted.mean, wanted.std) != (made.mean, made.std):
        raise MedicError(f"weights {name} require a different normalisation than {backbone}: use --backbone {name}")
    return _fetched(name, wanted)


def has_v1(backbone: str) -> bool:
    """Return whether a backbone has weights named `imagenet-v1`."""
    return backbone not in OURS and bool(import_timm(backbone).list_pretrained(f"{backbone.partition('.')[0]}.tv_in1k"))


def describe_weights(backbone: str, size: int | None = None) -> str:
    """Describe the usual ImageNet weights for a backbone in one line: the file, its source and the preprocessing.

    `size` is the image side in pixels (default: the backbone's native size).
    """
    if backbone in OURS:
        source, prepared = SOURCES.get(backbone, "no named weights; use --weights FILE"), OURS[backbone][1]
        mean, std = prepared.mean, prepared.std
    else:
        named = has_v1(backbone) and "." not in backbone
        config = import_timm(backbone).get_pretrained_cfg(f"{backbone}.tv_in1k" if named else backbone)
        if config is None:
            return f"{backbone}: no weights in timm"
        source, mean, std = _source(config, V1 if named else config.tag), config.mean, config.std
    numbers = "; ".join(
        f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in {"mean": mean, "std": std}.items()
    )
    return f"{backbone}: {source}. Images: resized to {size or native_size(backbone)} px; {numbers}"


def _source(config: Any, name: str) -> str:
    """Return the file name of timm weights, their location, and the option that selects them."""
    if config.hf_hub_id is None:
        return f"{config.url}: --weights FILE" if config.url else "no weights in timm"
    file, origin = config.hf_hub_filename or "model.safetensors", Path(config.url or "").name
    converted = f", converted from {origin}" if origin else ""
    return f"{file} from {config.hf_hub_id} on the Hugging Face Hub{converted}: --weights {name}"


def _fetched(name: str, wanted: Any) -> Path:
    """Return the path of cached weights. Downloads them if needed."""
    import huggingface_hub as hub

    if wanted.hf_hub_id is None:
        raise MedicError(f"weights {name} are not on the hub: download {wanted.url} and pass it as --weights FILE")
    repository, file = wanted.hf_hub_id, wanted.hf_hub_filename or "model.safetensors"
    cached = hub.try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return Path(cached)
    url = hub.hf_hub_url(repository, file)
    try:
        hub.get_hf_file_metadata(url)  # fails immediately, whereas the download would retry for half a minute
        return Path(hub.hf_hub_download(repository, file))
    except Exception as error:  # the exception type depends on the version of huggingface_hub
        reason = first_line(error)
        raise MedicError(
            f"could not download weights {name} ({reason}): download {url} elsewhere and pass it as --weights FILE"
        ) from error
