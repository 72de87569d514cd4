"""Which systems are rows of the paper's tables."""

from collections import Counter

from medic.methods import METHODS

ROWS = {
    "ERM", "RSC", "GroupDRO", "MLDG", "V-REx", "CORAL", "AND-mask", "SAND-mask", "Fish", "Fishr", "HGP", "Hutchinson",
    "MEDIC", "MEDIC++", "OpenMax", "ARPL", "CIRL", "MixStyle", "CrossMatch", "SWAD", "MVDG", "OneRing", "ALOFT", "MIRO",
    "MAML", "Reptile",
}  # fmt: skip
"""The names that the tables have in their first column."""


def test_a_row_is_one_system():
    named = Counter(method.paper for method in METHODS.values() if method.paper is not None)
    assert named == Counter(ROWS)


def test_names_are_those_of_the_rows():
    """A plain name is that of its row; what is after a hyphen names another form."""
    for name, method in METHODS.items():
        if method.paper is not None:
            assert name.removesuffix("-e") == method.paper.lower().replace("-", "")
