"""The pages of the site: none is missing from its table of contents, and the reference has every public name."""

import re

import pytest
import yaml

import medic
from medic import openset
from tests.pages import DOCS, ROOT

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def files_of(nav) -> list[str]:
    """Return the files that a table of contents names."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [file for entry in entries for file in files_of(entry)]


def test_table_of_contents():
    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    assert sorted(files_of(SITE["nav"])) == sorted(str(path.relative_to(DOCS)) for path in pages)


@pytest.mark.parametrize(("pages", "module"), [(("train", "use", "loop", "extend"), medic), (("openset",), openset)])
def test_reference_has_every_public_name(pages, module):
    text = "".join((DOCS / "reference" / f"{page}.md").read_text() for page in pages)
    # `medic.objective` is shown under a heading: a module has the same name, which the reference would take.
    named = re.findall(rf"^(?:::: |      heading: ){re.escape(module.__name__)}\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(module.__all__)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_files(page):
    """Links work in a clone too, where no site was built: they name files."""
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text()):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link).exists(), link


def test_pictures_are_small():
    for path in (DOCS / "images").rglob("*.webp"):
        assert path.stat().st_size <= 150_000, path.name
