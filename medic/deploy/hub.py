"""Upload models to the Hugging Face Hub, and download them: a model card and two model files each."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.deploy.model_file import MAX_DESCRIPTION
from medic.deploy.predictor import Predictor, load
from medic.errors import MedicError, first_line
from medic.metrics import find_metric
from medic.openset import RULES, Threshold
from medic.utils.files import make_folder, temporary_folder, writing

CARD = "README.md"
LIMITS = {CARD: 2**20, DESCRIPTION: MAX_DESCRIPTION, WEIGHTS: 2**34}
"""Maximum sizes, in bytes, of a model's files on the hub. No other files are uploaded or downloaded."""
CARD_METRICS = ("acc", "hscore", "oscr", "auroc")
AT_THRESHOLD = ("hscore", "acc_k", "acc_u")
"""Metrics that depend on the threshold."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PATH = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
_OWN = ("folder", "lists", "table")
"""Datasets that consist of the user's own files."""


def push_model(
    predictor: Predictor, name: str, metrics: Mapping[str, Any] | None, private: bool, license: str | None
) -> str:
    """Upload a model to the hub as `OWNER/NAME`, and return its URL.

    Uploads only the model card and the two model files. The provenance is uploaded without local paths. The model card
    shows the run's `metrics`, but omits those measured at a threshold other than the model's. To log in, use
    `hf auth login` or set HF_TOKEN.
    """
    _check_name(name)
    import huggingface_hub as hub

    described = {**predictor.description, "provenance": without_paths(predictor.description.get("provenance", {}))}
    with tempfile.TemporaryDirectory() as temporary, _hub_errors(f"could not upload {name} to the hub"):
        folder = Path(temporary)
        cleaned = replace(predictor, description=described)
        cleaned.save(folder)
        (folder / CARD).write_text(make_card(cleaned, name, metrics or {}, license), encoding="utf-8")
        api = hub.HfApi()
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.model_info(name).private:  # an existing repository keeps its visibility
            raise MedicError(f"{name} already exists and is public: make it private on the hub, or omit --private")
        added = [hub.CommitOperationAdd(file, folder / file) for file in LIMITS]
        api.create_commit(name, added, commit_message="Upload medic model")
    return f"{hub.constants.ENDPOINT}/{name}"


def pull(name: str, folder: Path | str, revision: str | None = None) -> Path:
    """Download a model from the hub into a folder, given its name `OWNER/NAME`, and return the folder.

    Downloads only the model card and the two model files, all from one commit, after checking their sizes. The model is
    validated as untrusted (see `load`) before the files appear in the folder.
    """
    _check_name(name)
    import huggingface_hub as hub

    target = Path(folder)
    if taken := [file for file in LIMITS if (target / file).exists()]:
        raise MedicError(f"{target / taken[0]} already exists: remove it, or use another folder")
    with _hub_errors(f"could not download {name} from the hub"):
        info = hub.HfApi().model_info(name, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    for file, limit in LIMITS.items():
        if file not in sizes:
            raise MedicError(f"{name} on the hub is not a medic model: {file} is missing")
        if (size := sizes[file]) is None or size > limit:
            raise MedicError(f"{name} on the hub was not downloaded: its {file} is larger than {limit >> 20} MiB")
    make_folder("folder", target)
    # A folder on the same file system, so that files are renamed and not copied.
    with writing("folder", target), temporary_folder(target / "pull") as temporary:
        with _hub_errors(f"could not download {name} from the hub"):
            for file in LIMITS:
                hub.hf_hub_download(name, file, revision=info.sha, local_dir=temporary)
        load(temporary)
        for file in LIMITS:
            shutil.move(temporary / file, target / file)
    return target


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > 96:
        raise MedicError(f"model name must be OWNER/NAME, as in its address on the hub, got {name!r}")


@contextmanager
def _hub_errors(failure: str) -> Iterator[None]:
    """Convert errors from the hub and its library into a one-line `MedicError`."""
    try:
        yield
    except (MedicError, MemoryError):
        raise
    except Exception as error:  # the type depends on the version of huggingface_hub
        status = getattr(getattr(error, "response", None), "status_code", None)
        way = ": log in with `hf auth login`, or set HF_TOKEN" if status in (401, 403) else ""
        raise MedicError(f"{failure} ({first_line(error)}){way}") from error


def without_paths(value: Any) -> Any:
    """Remove strings that contain local paths, absolute or in the home folder, from nested plain values."""
    if isinstance(value, Mapping):
        return {key: without_paths(part) for key, part in value.items() if not _is_path(key) and not _is_path(part)}
    if isinstance(value, list):
        return [without_paths(part) for part in value if not _is_path(part)]
    return value


def _is_path(value: object) -> bool:
    return isinstance(value, str) and (_PATH.match(value) is not None or str(Path.home()) in value)


def make_card(predictor: Predictor, name: str, metrics: Mapping[str, Any], license: str | None) -> str:
    """Return the model card: YAML metadata, usage, results and limits."""
    known, origin = predictor.classes, predictor.description.get("provenance", {})
    model, threshold = predictor.description["model"], predictor.threshold
    method, dataset = str(origin.get("method", "unknown")), str(origin.get("dataset", "unknown"))
    target, sources = _listed(origin.get("target")), _listed(origin.get("sources"))
    own = (metrics.get("threshold_rule"), metrics.get("threshold")) == (threshold.rule, threshold.value)
    keys = [key for key in CARD_METRICS if key in metrics and (own or key not in AT_THRESHOLD)]
    measured = [(find_metric(key), float(metrics[key])) for key in keys]
    rows = [f"| {metric.title} | {metric.scale * value:.1f}% | {metric.meaning} |" for metric, value in measured]
    results = {
        "task": {"type": "image-classification"},
        "dataset": {"type": dataset, "name": f"{dataset}, target {target}"},
        "metrics": [{"type": metric.key, "name": metric.title, "value": round(value, 4)} for metric, value in measured],
    }
    metadata = {
        **({} if license is None else {"license": license}),
        "library_name": "medic",
        "pipeline_tag": "image-classification",
        "tags": ["medic", "open-set-recognition", "domain-generalization", method],
        **({} if dataset in (*_OWN, "unknown") else {"datasets": [dataset]}),
        **({"metrics": [metric.key for metric, _ in measured]} if measured else {}),
        **({"model-index": [{"name": name.partition("/")[2], "results": [results]}]} if measured else {}),
    }
    header = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    table = ["| metric | value | meaning |", "|---|---|---|", *rows]
    numbers = [
        "## Results",
        "",
        _measured_on(target, metrics.get("threshold_rule"), threshold if own else None),
        "",
        *table,
        "",
    ]
    size = predictor.preprocessing.size
    return "\n".join([
        f"---\n{header}---\n",
        f"# {name.partition('/')[2]}\n",
        f"Classifies images into {len(known)} classes, or labels them unknown. Trained with {method} on {dataset} "
        f"(domains: {sources}), using a {model['backbone']} at {size} × {size} pixels.\n",
        "## Use\n",
        "```python",
        "import medic",
        f'model = medic.load(medic.pull("{name}", "model"))',
        'print(model.predict("photo.jpg"))',
        "```\n",
        f"Classes: {', '.join(map(_escaped, known))}\n",
        f"An image is known if its score ({predictor.score.name}) is at least {predictor.display_threshold:.4g}. "
        f"This threshold was chosen by the rule {threshold.rule!r}.\n",
        *(numbers if measured else ()),
        "## Limits\n",
        *([] if predictor.learned else ["- **This model learned nothing**: training did no better than chance."]),
        "- Each image gets exactly one label, a known class or `unknown`, even if it shows several objects.",
        "- In a domain unlike the training domains, the model rejects more known images as unknown, and accepts some "
        "unknown images as a known class.",
        "- The score is not a guarantee. Choose the threshold on your own images with `medic calibrate`, or set it "
        "with `model.at(X)`.",
        "",
    ])  # fmt: skip


def _measured_on(target: str, recorded: str | None, threshold: Threshold | None) -> str:
    """Describe the images on which a run was measured, and whether they influenced the threshold.

    `recorded` is the run's threshold rule. `threshold` is the model's threshold if the run was measured with it, and
    otherwise None.
    """
    held_out = target == "none"
    images = (
        "Measured on held-out images from the training domains."
        if held_out
        else f"Measured on the {target} domain, which was not used for training."
    )
    if threshold is None:
        other = "" if recorded is None else f" The run used another threshold, chosen by the rule {recorded!r}."
        return f"{images} These metrics do not depend on a threshold.{other}"
    rule = RULES.get(threshold.rule)
    if rule is None:
        return images
    if rule.oracle:
        return f"{images} The threshold was chosen with these images' labels, so the H-score is optimistic."
    if rule.transductive:
        return f"{images} The threshold was chosen on these images, without their labels."
    if held_out and rule.needs:
        return "Measured on held-out images from the training domains, which also determined the threshold."
    return images if held_out else f"Measured on the domain {target}, used neither for training nor for the threshold."


def _listed(names: Any) -> str:
    several = names if isinstance(names, list | tuple) else [] if names is None else [names]
    return ", ".join(_escaped(str(name)) for name in several) or "none"


def _escaped(text: str) -> str:
    """Escape the characters that are special in Markdown and HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", " ".join(text.split()))
