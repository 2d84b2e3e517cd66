"""Every code block of every page of the documentation runs."""

from __future__ import annotations

import pages
import pytest


def _cases():
    for page in pages.pages():
        marks = [pytest.mark.slow] if pages.slow_reason(page) else []
        yield pytest.param(page, id=str(page.relative_to(pages.ROOT)), marks=marks)


@pytest.mark.every_case
@pytest.mark.parametrize("page", list(_cases()))
def test_every_block_of_a_page_runs(page):
    pages.run(page)


@pytest.mark.every_case
@pytest.mark.parametrize("page", [page for page in pages.pages() if pages.slow_reason(page)], ids=str)
def test_blocks_of_slow_pages_have_a_class_and_those_that_are_not_run_are_right(page):
    for block in pages.read(page):
        if block.kind == "not run":
            pages.check(block)
