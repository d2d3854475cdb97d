"""The site: each page is in the navigation, links and anchors exist, drawings are those of their
script, and the reference has each public name once."""

from __future__ import annotations

import importlib.util
import json
import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import yaml

import wkwdask

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
GENERATED = {
    "cli-reference.md",
    *(f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")),
}
"""Pages that the hooks of MkDocs add."""


def pages_of(navigation):
    if isinstance(navigation, str):
        return [navigation]
    return [
        page
        for entry in (navigation.values() if isinstance(navigation, dict) else navigation)
        for page in pages_of(entry)
    ]


@cache
def prose(path):
    """Text of a page without blocks of code."""
    return re.sub(
        r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


@cache
def anchors(path):
    """Ids that Python-Markdown gives to the headings of a page."""
    found = []
    for heading in re.findall(r"^#+ +(.*)", prose(path), re.MULTILINE):
        words = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        found.append(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower()))
    return [
        f"{anchor}_{number}" if (number := found[:place].count(anchor)) else anchor
        for place, anchor in enumerate(found)
    ]


def test_each_page_is_in_the_navigation_once():
    navigation = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(navigation) == sorted([*PAGES, *GENERATED])


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(DOCS / page for page in PAGES)],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_links_and_anchors_exist(path):
    problems = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        file = (path.parent / target).resolve() if target else path
        inside = not path.is_relative_to(DOCS) or file.is_relative_to(DOCS)
        exists = file.exists() or (
            file.is_relative_to(DOCS) and file.relative_to(DOCS).as_posix() in GENERATED
        )
        if not inside or not exists or (anchor and anchor not in anchors(file)):
            problems.append(link)
    assert problems == []


def script(name):
    """Import a script of the site."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def image(name):
    return (DOCS / "images" / name).read_text(encoding="utf-8")


def test_drawings_are_those_of_the_script():
    drawings = script("drawings").DRAWINGS
    assert {name: image(f"{name}.svg") for name in drawings} == {
        name: draw() for name, draw in drawings.items()
    }


def test_the_tour_shows_its_recording():
    tour = script("tour")
    assert tour.animation(image("tour.cast")) == image("tour.svg")
    typed = "".join(event[2] for event in map(json.loads, image("tour.cast").splitlines()[1:]))
    assert all(f"$ {command}\r\n" in typed for command in tour.COMMANDS)


def test_the_reference_has_each_public_name_once():
    names = [
        name
        for page in (DOCS / "api").glob("*.md")
        for name in re.findall(
            r"^::: wkwdask\.(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert sorted(names) == sorted(wkwdask.__all__)


@pytest.mark.parametrize(
    "page",
    [ROOT / "CONTRIBUTING.md", *sorted((DOCS / "how").glob("*.md"))],
    ids=lambda page: page.stem,
)
def test_paths_for_contributors_exist(page):
    roots = [ROOT, ROOT / "wkwdask", ROOT / "tests"]
    named = [
        word.rstrip("/")
        for word in re.findall(r"`([\w.*-]+(?:/[\w.*-]+)*/?)`", page.read_text(encoding="utf-8"))
        if word.endswith(".py") or any((root / word.partition("/")[0]).is_dir() for root in roots)
    ]
    missing = [
        word
        for word in named
        if not any(next(root.glob(word if "/" in word else f"**/{word}"), None) for root in roots)
    ]
    assert missing == []
