"""A dataset in memory: images, and what is known of each."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """N images of some classes in some domains.

    `images` (N, 3, H, W) are uint8, `domain` and `label` (N,) positions in `domains` and `classes`, and `paths` name
    each image for people.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    images: Tensor
    domain: Tensor
    label: Tensor
    paths: tuple[str, ...]

    @cached_property
    def hash(self) -> str:
        """A fingerprint of the list of images: their names, labels and pixels."""
        digest = hashlib.sha256("\n".join((*self.domains, *self.classes, *self.paths)).encode())
        for values in (self.domain, self.label, self.images):
            digest.update(values.contiguous().numpy().tobytes())
        return digest.hexdigest()
