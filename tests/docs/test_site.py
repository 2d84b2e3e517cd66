"""The checker of the built site finds what it is there for. `make docs` runs it on the site itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import check_site  # noqa: E402
import outside  # noqa: E402


def site(folder, body, **files):
    (folder / "index.html").write_text(f"<html><head></head><body>{body}</body></html>", encoding="utf-8")
    (folder / "page.html").write_text('<h1 id="top">Page</h1>', encoding="utf-8")
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return check_site.check(folder)


@pytest.mark.parametrize(
    "body",
    [
        '<a href="page.html#top">x</a> <a href="#here">y</a> <p id="here"></p> <a href=".">z</a>',
        '<img src="data:image/png;base64,AA=="> <img src="page.html">',
        '<a href="https://example.org/x?y#z">x</a> <a href="mailto:ann@example.org">y</a>',
        '<link rel="canonical" href="https://example.org/">',
        '<svg xmlns="http://www.w3.org/2000/svg"></svg> https://example.org <code>url(https://example.org)</code>',
    ],
)
def test_a_good_page_passes(tmp_path, body):
    assert site(tmp_path, body)[0] == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('<a href="gone.html">x</a>', "no such file"),
        ('<a href="page.html#gone">x</a>', "no #gone"),
        ('<a href="#gone">x</a>', "no #gone"),
        ('<img src="gone.png">', "no such file"),
        ('<a href="https://localhost/x">x</a>', "no address of a site"),
        ('<a href="htp://example.org">x</a>', "neither https"),
        ('<a href="mailto:ann">x</a>', "no address of mail"),
        ('<script src="https://example.org/x.js"></script>', "ship it"),
        ('<script src="//example.org/x.js"></script>', "ship it"),
        ('<link rel="stylesheet" href="https://example.org/x.css"/>', "ship it"),
        ('<style>p {}</style><link rel="preconnect" href="http://example.org">', "ship it"),
        ('<img srcset="page.html 1x, https://example.org/x.png 2x">', "ship it"),
        ('<iframe src="https://example.org"></iframe>', "ship it"),
        ('<style>@import "https://example.org/x.css";</style>', "ship it"),
        ('<p style="background: url(https://example.org/x.png)"></p>', "ship it"),
        ('<script>import("https://example.org/x.js")</script>', "ship it"),
    ],
)
def test_a_bad_page_is_told(tmp_path, body, why):
    (line,) = site(tmp_path, body)[0]
    assert line.startswith("index.html: ")
    assert why in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x_css", "@font-face { src: url('https://example.org/x.woff2') }"),
        ("x_css", "@import url(//example.org/x.css);"),
        ("x_js", 'script.src = "https://example.org/x.js";'),
        ("x_svg", "<style>@import url(https://example.org/x.css)</style>"),
    ],
)
def test_a_bad_file_is_told(tmp_path, name, text):
    (line,) = site(tmp_path, "", **{name: text})[0]
    assert "ship it" in line


def test_links_to_other_sites_are_listed(tmp_path):
    assert site(tmp_path, '<a href="https://example.org/b">b</a><a href="https://example.org/a">a</a>')[1] == [
        "https://example.org/a",
        "https://example.org/b",
    ]


def test_an_empty_folder_is_no_site(tmp_path):
    assert check_site.check(tmp_path)[0]


def test_links_out_of_docs_lead_to_pages_of_the_site():
    page = DOCS / "papers" / "dmtrl.md"
    text = (
        "[a](../../benchmarks/README.md#tasks-on-a-cluster) [b](../privacy.md#x) [c](http://a.org) [d](#e) [f](no.md)"
    )
    assert outside.relinked(text, page, page) == text.replace(
        "../../benchmarks/README.md", "../files/benchmarks/README.markdown"
    )


def test_links_of_a_file_outside_are_moved_to_where_its_page_is():
    readme = outside.ROOT / "benchmarks" / "README.md"
    text = "[a](../docs/math.md) [b](rates.py) [c](../docs/papers/README.md#x)"
    assert outside.relinked(text, readme, outside.page(readme)) == (
        "[a](../../math.md) [b](rates.py.markdown) [c](../../papers/README.md#x)"
    )


def test_an_example_has_its_page_in_the_gallery():
    assert outside.page(outside.ROOT / "examples" / "plot_x.py") == DOCS / "gallery" / "plot_x.rst"
    assert outside.page(outside.ROOT / "examples" / "GALLERY_HEADER.rst") == DOCS / "gallery" / "index.rst"
    assert outside.FILES in outside.page(outside.ROOT / "examples" / "other.py").parents
