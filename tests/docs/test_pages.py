"""Every code block of every page of the documentation runs, here or, where that takes long, in `make test-docs`."""

from __future__ import annotations

import pages
import pytest

ALL = pages.pages()


def _cases():
    for page in ALL:
        yield pytest.param(page, id=str(page.relative_to(pages.ROOT)), marks=[pytest.mark.docs] if _long(page) else [])


def _long(page):
    try:
        blocks = pages.read(page)
        needs = any(block.mark == "needs" for block in blocks)  # which `make test` does not install
        return pages.slow_reason(page) or pages.starts_peers(blocks) or needs
    except pages.PageError:  # the test of the page tells what is wrong
        return False


@pytest.mark.every_case
@pytest.mark.parametrize("page", list(_cases()))
def test_every_block_of_a_page_runs(page):
    pages.run(page)


@pytest.mark.every_case
@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_every_block_of_a_page_is_right_as_far_as_reading_tells(page):
    for block in pages.read(page):
        if block.kind in ("not run", "python", "doctest", "sh"):
            pages.check(block)
