"""Models on the Hugging Face Hub, in its usual layout: a model card in README.md, and the two files of a model."""

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
"""The files of a model on the hub, the only ones that are sent or fetched, and their limits in bytes."""
CARD_METRICS = ("acc", "hscore", "oscr", "auroc")
AT_THRESHOLD = ("hscore", "acc_k", "acc_u")
"""Metrics that belong to one threshold."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_PATH = re.compile(r"[/\\~]|[A-Za-z]:[/\\]")
_OWN = ("folder", "lists", "table")
"""Names of datasets that are a person's own files."""


def push_model(
    predictor: Predictor, name: str, metrics: Mapping[str, Any] | None, private: bool, license: str | None
) -> str:
    """Send a model to the hub as `OWNER/NAME`, and return its address.

    `metrics` of its run are part of the model card, those at a threshold only if it is the model's. Nothing but the
    three files is sent, and texts that are paths of this machine are left out of the provenance. A token is found as by
    all tools of the hub: `hf auth login`, or the variable HF_TOKEN.
    """
    _check_name(name)
    import huggingface_hub as hub

    described = {**predictor.description, "provenance": without_paths(predictor.description.get("provenance", {}))}
    with tempfile.TemporaryDirectory() as temporary, _hub_errors(f"{name} cannot be written to the hub"):
        folder = Path(temporary)
        cleaned = replace(predictor, description=described)
        cleaned.save(folder)
        (folder / CARD).write_text(make_card(cleaned, name, metrics or {}, license), encoding="utf-8")
        api = hub.HfApi()
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.model_info(name).private:  # one that exists stays as it is
            raise MedicError(f"{name} exists and is public: make it private on the hub, or leave out --private")
        added = [hub.CommitOperationAdd(file, folder / file) for file in LIMITS]
        api.create_commit(name, added, commit_message="Upload a model of medic")
    return f"{hub.constants.ENDPOINT}/{name}"


def pull(name: str, folder: Path | str, revision: str | None = None) -> Path:
    """Fetch the model `OWNER/NAME` from the hub into a folder, check it, and return the folder.

    Only the three files of a model are fetched, of one commit, after their sizes were checked. The model is read as one
    of a stranger (see `load`) before the files appear in the folder.
    """
    _check_name(name)
    import huggingface_hub as hub

    target = Path(folder)
    if taken := [file for file in LIMITS if (target / file).exists()]:
        raise MedicError(f"{target / taken[0]} exists: give another folder, or remove it")
    with _hub_errors(f"{name} cannot be read from the hub"):
        info = hub.HfApi().model_info(name, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    for file, limit in LIMITS.items():
        if file not in sizes:
            raise MedicError(f"{name} on the hub is no model of medic: it has no {file}")
        if (size := sizes[file]) is None or size > limit:
            raise MedicError(f"{name} on the hub has a {file} of more than {limit >> 20} MiB, so it is not fetched")
    make_folder("folder", target)
    # Beside the files, so that they are renamed and not copied.
    with writing("folder", target), temporary_folder(target / "pull") as temporary:
        with _hub_errors(f"{name} cannot be read from the hub"):
            for file in LIMITS:
                hub.hf_hub_download(name, file, revision=info.sha, local_dir=temporary)
        load(temporary)
        for file in LIMITS:
            shutil.move(temporary / file, target / file)
    return target


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > 96:
        raise MedicError(f"name {name!r}: give OWNER/NAME, as in the address of a model on the hub")


@contextmanager
def _hub_errors(failure: str) -> Iterator[None]:
    """Turn errors of the hub and its library into one line."""
    try:
        yield
    except (MedicError, MemoryError):
        raise
    except Exception as error:  # the type depends on the version of the hub's library
        status = getattr(getattr(error, "response", None), "status_code", None)
        way = ": log in with `hf auth login`, or set HF_TOKEN" if status in (401, 403) else ""
        raise MedicError(f"{failure} ({first_line(error)}){way}") from error


def without_paths(value: Any) -> Any:
    """Return plain values without texts that are paths of a machine: absolute ones, and those of a home folder."""
    if isinstance(value, Mapping):
        return {key: without_paths(part) for key, part in value.items() if not _is_path(key) and not _is_path(part)}
    if isinstance(value, list):
        return [without_paths(part) for part in value if not _is_path(part)]
    return value


def _is_path(value: object) -> bool:
    return isinstance(value, str) and (_PATH.match(value) is not None or str(Path.home()) in value)


def make_card(predictor: Predictor, name: str, metrics: Mapping[str, Any], license: str | None) -> str:
    """Return the model card: metadata in YAML, and what a person needs to use the model."""
    known, origin = predictor.classes, predictor.description.get("provenance", {})
    model, threshold = predictor.description["model"], predictor.threshold
    method, dataset = str(origin.get("method", "unknown")), str(origin.get("dataset", "unknown"))
    target, sources = _listed(origin.get("target")), _listed(origin.get("sources"))
    own = (metrics.get("threshold_rule"), metrics.get("threshold")) == (threshold.rule, threshold.value)
    keys = [key for key in CARD_METRICS if key in metrics and (own or key not in AT_THRESHOLD)]
    measured = [(find_metric(key), float(metrics[key])) for key in keys]
    rows = [f"| {metric.title} | {metric.scale * value:.1f} % | {metric.meaning} |" for metric, value in measured]
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
        f"Names images of {len(known)} classes, or calls them unknown. Trained by {method} on {dataset} "
        f"(domains: {sources}) with a {model['backbone']} at {size} × {size} pixels.\n",
        "## Use\n",
        "```python",
        "import medic",
        f'model = medic.load(medic.pull("{name}", "model"))',
        'print(model.predict("photo.jpg"))',
        "```\n",
        f"Classes: {', '.join(map(_escaped, known))}\n",
        f"An image is known if its score ({predictor.score.name}) is at least {predictor.display_threshold:.4g}. "
        f"The rule {threshold.rule!r} chose this threshold.\n",
        *(numbers if measured else ()),
        "## Limits\n",
        *([] if predictor.learned else ["- **This model learned nothing**: it was no better than chance in training."]),
        "- Every image gets one of these classes or `unknown`; several objects in an image are one decision.",
        "- In a domain that resembles none of the training domains, more known images are called unknown, and "
        "some unknown images are taken for a class.",
        "- The score is no guarantee: choose the threshold on images of your own with `medic calibrate`, or set it "
        "with `model.at(X)`.",
        "",
    ])  # fmt: skip


def _measured_on(target: str, recorded: str | None, threshold: Threshold | None) -> str:
    """Return on which images a run was measured, and what its threshold saw of them.

    `recorded` is the rule of the run's record, and `threshold` that of the model if the record is measured at it.
    """
    held_out = target == "none"
    images = (
        "On held-out images of the training domains."
        if held_out
        else f"On the domain {target}, of which training saw no image."
    )
    if threshold is None:
        other = "" if recorded is None else f" The run was measured at another threshold, of the rule {recorded!r}."
        return f"{images} These metrics depend on no threshold.{other}"
    rule = RULES.get(threshold.rule)
    if rule is None:
        return images
    if rule.oracle:
        return f"{images} The threshold was chosen with the labels of these images, so the H-score is optimistic."
    if rule.transductive:
        return f"{images} The threshold was chosen on these images, without their labels."
    if held_out and rule.needs:
        return "On held-out images of the training domains, which chose the threshold too."
    return images if held_out else f"On the domain {target}, of which neither training nor the threshold saw an image."


def _listed(names: Any) -> str:
    several = names if isinstance(names, list | tuple) else [] if names is None else [names]
    return ", ".join(_escaped(str(name)) for name in several) or "none"


def _escaped(text: str) -> str:
    """Return a text without the characters that Markdown and HTML read."""
    return re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", " ".join(text.split()))
