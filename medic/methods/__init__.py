"""The table of methods.

A plain name is the system as in the paper's open-set tables; a suffix names another form.
"""

from medic.errors import check_choice
from medic.method import DOMAINBED_ADAM, Method, Rate
from medic.methods.alignment import ALIGNMENT
from medic.methods.meta import META
from medic.systems import SYSTEMS

METHODS: dict[str, Method] = {method.name: method for method in (*META, *ALIGNMENT, *SYSTEMS)}


def find_method(name: str) -> Method:
    """Return a method by name."""
    return METHODS[check_choice("method", name, METHODS)]


__all__ = ["DOMAINBED_ADAM", "METHODS", "Method", "Rate", "find_method"]
