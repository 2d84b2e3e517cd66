"""The site: `make docs` builds it. Nothing in it is loaded from elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import command_line
import outside
import reference

import coterie

project = "coterie"
author = copyright = "The coterie developers"
version = release = coterie.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "sphinx_gallery.gen_gallery"]
source_suffix = {".md": "markdown", outside.SUFFIX: "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_ext", "_templates"]
templates_path = ["_templates"]
nitpicky = True
smartquotes = False  # "auto" in a text is what is typed
toc_object_entries_show_parents = "hide"
nitpick_ignore_regex = [(r"py:.*", r"(numpy|pandas|sklearn|matplotlib|typing)\..*")]  # they have sites of their own

# Markdown: anchors of headings as code hosts make them
myst_heading_anchors = 4

# Reference: from docstrings
autosummary_generate = True
autosummary_context = {"members_of": reference.members_of(), "title_of": reference.titles()}
autosummary_filename_map = reference.filenames()
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# Gallery: examples/plot_*.py; GALLERY=0 shows them without running them
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "ignore_pattern": r"(^|[/\\])(?!plot_)[^/\\]*\.py$",
    "plot_gallery": os.environ.get("GALLERY", "1") != "0",
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,  # its page loads scripts from elsewhere
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
}

html_theme = "furo"
html_title = "coterie"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"

linkcheck_timeout = 20


def _source_read(app, docname, source):
    path = Path(app.env.doc2path(docname))
    if path.suffix == ".md":
        source[0] = outside.relinked(source[0], path, path)
    if docname == "reference/command-line":
        source[0] = source[0].replace(command_line.MARK, command_line.markdown())


def setup(app):
    """Pages that are made before the build, and what comes into them."""
    outside.write_pages()
    app.connect("source-read", _source_read)
