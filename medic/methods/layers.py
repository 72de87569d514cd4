"""Systems that differ in a layer of the network."""

from medic.methods.method import Method
from medic.strategies import Joint
from medic.tasks import Grid

LAYERED = (
    Method(
        "mixstyle",
        "images learn in each other's styles",
        "layer: channel statistics are mixed between images behind the stages of the backbone",
        "Zhou et al. 2021",
        Grid(),
        Joint(),
        layer="mixstyle",
        numbers={name: {"mixstyle.stages": 2} for name in ("office-home", "digits-dg", "digits")},
        paper="MixStyle",
    ),
    Method(
        "aloft-e",
        "noise on the low frequencies of the features",
        "layer: amplitudes inside global filters are perturbed, element by element",
        "Guo et al. 2023",
        Grid(),
        Joint(),
        layer="aloft-e",
        backbone="gfnet_h_ti",
        paper="ALOFT",
    ),
    Method(
        "aloft-s",
        "noise on the statistics of low frequencies of the features",
        "layer: amplitudes inside global filters are perturbed, by mean and deviation",
        "Guo et al. 2023",
        Grid(),
        Joint(),
        layer="aloft-s",
        backbone="gfnet_h_ti",
    ),
)
