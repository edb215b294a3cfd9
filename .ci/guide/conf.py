"""Sphinx configuration of `make guide`: the same pages as a static site, without scripts of other sites."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from latex2mathml.converter import convert  # noqa: E402 - the checkout is no installed package

from webapp.guide.library import shelves  # noqa: E402

project = "Rondo"
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
exclude_patterns = ["**/*.de.md"]
html_theme = "alabaster"
html_theme_options = {"description": "Compare model responses. Train the next model.", "page_width": "70rem"}
html_show_sourcelink = False
html_copy_source = False
html_use_index = False
html_math_renderer = "mathml"
highlight_language = "text"


def setup(app):  # type: ignore[no-untyped-def]  # Sphinx's own signature
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("source-read", _with_contents)


def _inline(writer, node):  # type: ignore[no-untyped-def]
    from docutils.nodes import SkipNode

    writer.body.append(convert(node.astext()))
    raise SkipNode


def _display(writer, node):  # type: ignore[no-untyped-def]
    from docutils.nodes import SkipNode

    writer.body.append(f"<p>{convert(node.astext(), display='block')}</p>")
    raise SkipNode


def _with_contents(app, name, source):  # type: ignore[no-untyped-def]
    """Append the sidebar's contents to the index: one tree for each kind of page."""
    if name == "index":
        for shelf in shelves():
            entries = "\n".join(f"{page.kind}/{page.name}" for page in shelf.pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {shelf.title}\n\n{entries}\n```\n"
