"""Channels-last models on a CPU, whose gradients must not corrupt memory."""

import subprocess
import sys

import torch
from torch import nn

from medic.models.channels_last import to_channels_last

CODE = """
import torch
from torch import nn
from medic.models.channels_last import to_channels_last

model = to_channels_last(nn.Conv2d(3, 48, 1, stride=2, bias=False), torch.device("cpu"))
for _ in range(30):
    x = torch.randn(6, 3, 96, 96).contiguous(memory_format=torch.channels_last)
    model(x).square().mean().backward()
    [torch.randn(1000) for _ in range(50)]
"""


def test_a_strided_convolution_of_three_channels_does_not_end_the_process():
    """In torch 2.13, it does so in channels-last format."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_result_is_the_same():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 1, stride=2), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 16, 16)
    expected = network(x)
    model = to_channels_last(network, torch.device("cpu"))
    assert model[2].weight.is_contiguous(memory_format=torch.channels_last)
    output = model(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(output, expected)
