"""The table of methods.

A plain name is the system as the paper's open-set tables have it; a suffix names another form.
"""

from medic.errors import check_choice
from medic.methods.alignment import ALIGNMENT
from medic.methods.layers import LAYERED
from medic.methods.meta import META
from medic.methods.method import OBJECTIVES, Method, Training, make_objective, own_numbers
from medic.methods.numbers import Numbers
from medic.methods.openset import OPENSET
from medic.methods.parts import ADVISORS, AVERAGES, CHANGES, LAYERS, PENALTIES
from medic.methods.search import DOMAINBED_ADAM, SHARED, Choice, Law, Range, Rate

METHODS: dict[str, Method] = {method.name: method for method in (*META, *ALIGNMENT, *OPENSET, *LAYERED)}


def find_method(name: str) -> Method:
    """Look a method up by name."""
    return METHODS[check_choice("method", name, METHODS)]


def usual_numbers(dataset: str) -> dict[str, float]:
    """The numbers of parts on a benchmark, `miro.weight`, where the authors of the part have others there."""
    return {name: value for method in METHODS.values() for name, value in method.numbers.get(dataset, {}).items()}


__all__ = [
    "ADVISORS",
    "AVERAGES",
    "CHANGES",
    "DOMAINBED_ADAM",
    "LAYERS",
    "METHODS",
    "OBJECTIVES",
    "PENALTIES",
    "SHARED",
    "Choice",
    "Law",
    "Method",
    "Numbers",
    "Range",
    "Rate",
    "Training",
    "find_method",
    "make_objective",
    "own_numbers",
    "usual_numbers",
]
