"""Coloured MNIST from idx files."""

import numpy as np
import pytest
import torch

from medic.data import BENCHMARKS, Storage
from medic.data.benchmarks import cmnist
from medic.errors import MedicError


class TestCmnist:
    def test_as_domainbed_draws_it(self, idx):
        """The same global draws, written out."""
        images, domain, label, _ = cmnist.build(idx, seed=3)
        parts = [(cmnist.read_idx(idx, p, "images"), cmnist.read_idx(idx, p, "labels")) for p in ("train", "t10k")]
        pixels, digits = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        with torch.random.fork_rng():
            torch.manual_seed(3)
            order = torch.randperm(90)
            for environment, flip in enumerate((0.1, 0.2, 0.9)):
                chosen = order[environment::3]
                y = (digits[chosen] < 5).float()
                y = (y - (torch.rand(30) < 0.25).float()).abs()
                colour = (y - (torch.rand(30) < flip).float()).abs()
                expected = torch.stack([pixels[chosen]] * 2, dim=1)
                expected[torch.arange(30), (1 - colour).long()] = 0
                mine = domain == environment
                assert torch.equal(images[mine], expected)
                assert torch.equal(label[mine], y.long())

    def test_missing_and_truncated_files(self, idx):
        bench = BENCHMARKS["cmnist"]
        assert bench.open(idx).load(Storage(28)).images.shape == (90, 2, 28, 28)
        (idx / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0")
        with pytest.raises(MedicError, match="truncated or not an idx file"):
            cmnist.build(idx, 0)
        (idx / "train-labels-idx1-ubyte").write_bytes((idx / "t10k-labels-idx1-ubyte").read_bytes())
        with pytest.raises(MedicError, match="which do not match"):
            cmnist.build(idx, 0)
        damaged = bytearray((idx / "train-images-idx3-ubyte.gz").read_bytes())
        damaged[100] ^= 255
        (idx / "train-images-idx3-ubyte.gz").write_bytes(damaged)
        with pytest.raises(MedicError, match="truncated or not an idx file"):
            cmnist.build(idx, 0)
        (idx / "train-labels-idx1-ubyte").unlink()
        with pytest.raises(MedicError, match="is missing train-labels-idx1-ubyte or"):
            cmnist.read_idx(idx, "train", "labels")
