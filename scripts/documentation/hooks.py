"""What MkDocs calls while it builds the site; ``mkdocs.yml`` names this file."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from scripts.documentation.pages import made, marked

PICTURES = (
    "scripts/data/event_display.png",
    "scripts/data/confusion.png",
    "scripts/data/speed/campaign.png",
    "scripts/data/speed/load.png",
    "scripts/data/speed/speed.png",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the pictures that lie elsewhere."""
    for path, text in made().items():
        files.append(File.generated(config, path, content=text))
    for path in PICTURES:
        files.append(File.generated(config, path, abs_src_path=str(CHECKOUT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace a page's marks; what lies next to ``docs/`` is at the top of the site."""
    parts = _marked()
    markdown = re.sub(r"<!-- (\w+) -->", lambda found: parts.get(found[1], found[0]), markdown)
    return markdown.replace("](../README.md", "](index.md").replace("](../scripts/", "](scripts/")


_marked = cache(marked)
