"""What runs the pages finds what is wrong in them, and says on which line."""

from __future__ import annotations

import os
import textwrap
import time
import warnings

import pages
import pytest


@pytest.fixture
def page(tmp_path):
    """Writes a page and runs it."""

    def run(text, limit=None):
        path = tmp_path / "page.md"
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return pages.run(path, limit)

    return run


def test_a_right_page(page):
    blocks = page(
        """
        <!-- setup: python
        start = 20
        -->

        ```python
        >>> def twice(x):
        ...     return 2 * x
        >>> twice(start)
        40

        ```

        * in a list:

          ~~~python
          found = twice(start) + 2
          print("found", found)
          ~~~

          <!-- output -->
          ```text
          found ...
          ```

        ```python
        >>> found
        42
        ```

        <!-- file: rows.csv -->
        ```csv
        a,b
        1,2
        ```

        ```sh
        cat rows.csv
        echo done >&2
        ```

        <!-- output -->
        ```text
        a,b
        1,2
        done
        ```

        <!-- setup: sh
        echo hidden > hidden.txt
        -->

        ````{note}
        ```python
        from pathlib import Path

        assert Path("hidden.txt").read_text() == "hidden\\n"
        ```
        ````

        <!-- not run: needs a cluster -->
        ```python
        model = ct.CollaborativeRegressor(engine=ct.Cluster("10.0.0.1:6379"))
        model.fit("s3://bucket/", y="sales", agents=ct.datasets.gapminder)
        ```

        <!-- not run: needs two machines -->
        ```sh
        coterie peer run ann &   # the first
        COTERIE_PLAIN=1 coterie fit data.csv --agent user --target y \\
            -o model/ && make test ARGS=-q
        pip install "coterie[ray]"
        ```

        ```json
        {"not": "run"}
        ```
        """
    )
    assert [block.kind for block in blocks] == [
        *("python", "doctest", "python", "output", "doctest", "file", "sh", "output", "sh", "directive", "python"),
        *("not run", "not run", "text"),
    ]


WRONG = {
    "other output of a doctest": (
        """
        text
        ```python
        >>> x = 1

        >>> x + 1
        3
        ```
        """,
        r"page.md:5: in the ```python block of line 2: other output(.|\n)*Expected:\s+3\s+Got:\s+2",
    ),
    "a doctest raises": (
        """
        ```python
        >>> 1 + 1
        2
        >>> 1 / 0
        0
        ```
        """,
        r"page.md:4: .*ZeroDivisionError",
    ),
    "a block without prompts raises": (
        """
        ```python
        x = 1
        ```

        * ```python
          def f():
              return missing

          f()
          ```
        """,
        r"page.md:7: in the ```python block of line 5: NameError: name 'missing'",
    ),
    "a block does not compile": ("```python\nx = 1\ny = = 2\n```\n", r"page.md:3: .*SyntaxError"),
    "a warning": (
        """
        ```python
        import warnings
        warnings.warn("old", DeprecationWarning)
        ```
        """,
        r"page.md:3: .*DeprecationWarning: old",
    ),
    "other output": (
        """
        ```python
        print(1)
        ```

        <!-- output -->
        ```text
        2
        ```
        """,
        r"page.md:6: in the ```text block of line 6: other output(.|\n)*Got:\s+1",
    ),
    "output of nothing": ("<!-- output -->\n```text\n2\n```\n", r"page.md:2: .*no block ran"),
    "a command fails": (
        """
        ```sh
        echo before
        echo $((1 + 1)) && ls no-such-file
        echo after
        ```
        """,
        r"page.md:3: in the ```sh block of line 1: exit code(.|\n)*no-such-file",
    ),
    "a pipe fails": ("```sh\nfalse | cat\n```\n", r"page.md:2: .*exit code 1"),
    "an unset variable": ("```sh\n\necho $NOBODY_SETS_THIS\n```\n", r"page.md:1: .*exit code(.|\n)*line 3: NOBODY"),
    "an unknown language": ("text\n\n```basic\n10 GOTO 10\n```\n", r"page.md:3: .*unknown language 'basic'"),
    "no language": ("```\nx = 1\n```\n", r"page.md:1: .*unknown language ''"),
    "no end": ("text\n```python\nx = 1\n", r"page.md:2: this block has no end"),
    "no colon": ("<!-- not run -->\n```python\nx = 1\n```\n", r"page.md:1: unknown mark above a block"),
    "no reason": ("<!-- not run: -->\n```python\nx = 1\n```\n", r"page.md:2: .*'not run' needs a value"),
    "no block after a mark": (
        "<!-- not run: root -->\n\n```sh\nls\n```\n",
        r"page.md:2: no block follows the mark",
    ),
    "an unknown mark": ("<!-- notrun: root -->\n```sh\nls\n```\n", r"page.md:1: unknown mark above a block"),
    "a mark at the end": ("```sh\nls\n```\n<!-- output -->\n", r"page.md:4: no block follows the mark 'output'"),
    "slow in the middle": ("text\n<!-- slow: hours -->\n", r"page.md:2: the mark 'slow' is the first line"),
    "a prompt in a text block": ("```text\n>>> 1 + 1\n```\n", r"page.md:1: .*code in a block that is not run: >>> 1"),
    "a prompt outside of blocks": ("text\n\n>>> 1 + 1\n2\n", r"page.md:3: a prompt outside of a block"),
    "a prompt in a comment": ("<!--\n>>> 1 + 1\n2\n-->\n", r"page.md:1: code in a comment"),
    "a block in a quotation": ("> ```python\n> 1 / 0\n> ```\n", r"page.md:1: a block in a quotation"),
    "code in a directive": ("```{code-block} python\n1 / 0\n```\n", r"page.md:1: code in a directive"),
    "code between colons": (":::{code} python\n1 / 0\n:::\n", r"page.md:1: code in a directive"),
    "a block in a directive": ("````{note}\n```python\n1 / 0\n```\n````\n", r"page.md:3: .*ZeroDivisionError"),
    "what is not installed": ("```python\nx = 1\nimport torch\n```\n", r"page.md:3: .*write <!-- needs: torch -->"),
    "what is not installed, below what fails": (
        "```python\n1 / 0\n```\n\n```python\nimport torch\n```\n",
        r"page.md:6: .*imports torch",
    ),
    "a part of it": ("```python\n>>> from torch.nn import Linear\n```\n", r"page.md:2: .*imports torch"),
    "what a block makes that may not run": (
        """
        <!-- needs: torch -->
        ```python
        net = __import__("torch").nn.Linear(2, 1)
        ```

        ```python
        print(net)
        ```
        """,
        r"page.md:7: .*uses 'net' of the block of line 2.*write <!-- needs: torch -->",
    ),
    "+SKIP": ("```python\n>>> 1 / 0  # doctest: +SKIP\n```\n", r"page.md:1: .*SKIP"),
    "a file elsewhere": ("<!-- file: ../x.csv -->\n```csv\na\n```\n", r"page.md:2: .*outside of the page's folder"),
}
NOT_RUN = {
    "syntax": ("python", "x = 1\ny = = 2", 4, "SyntaxError"),
    "ct.name": ("python", "import coterie as ct\nct.Cluster()\nct.Clutter()", 5, r"there is no ct\.Clutter"),
    "ct.name after a prompt": ("python", ">>> x = 1\n>>> ct.Clutter(x)\n3", 4, r"there is no ct\.Clutter"),
    "name of a module": ("python", "ct.datasets.gapminder()\nct.datasets.nowhere()", 4, r"no ct\.datasets\.nowhere"),
    "import": ("python", "from coterie.datasets import gapminder, nowhere", 3, r"no ct\.datasets\.nowhere"),
    "command": (
        "sh",
        "coterie fit a.csv --agent u --target y -o m\ncoterie guess a.csv",
        4,
        "no command 'coterie guess'",
    ),
    "command of a group": ("sh", "coterie peer fly ann", 3, "no command 'coterie peer fly'"),
    "no command of a group": ("sh", "coterie peer", 3, "'coterie peer' needs one of"),
    "option": ("sh", "ls; coterie peer run ann --loudly", 3, "[Nn]o such option.*--loudly"),
    "option on another line": ("sh", "ls\ncoterie peer run \\\n    ann --loudly", 4, "[Nn]o such option.*--loudly"),
    "too many arguments": ("sh", "coterie peer run ann bob", 3, "unexpected bob"),
    "too few arguments": ("sh", "coterie peer run &", 3, "argument .* is missing"),
    "a required option": ("sh", "coterie fit a.csv", 3, "option .* is missing"),
    "make": ("sh", "make test\nmake love", 4, "no target 'love'"),
    "script": ("sh", "python benchmarks/nothing.py", 3, "no file benchmarks/nothing.py"),
    "option of a script": ("sh", "python benchmarks/scale.py --never", 3, "no option --never"),
    "module": ("sh", "python -m coterie.testing.nothing", 3, "no module coterie.testing.nothing"),
    "paper": ("sh", "python -m papers dada-figure-2 --quick\npython -m papers dada-figure-99", 4, "dada-figure-99"),
    "option of papers": ("sh", "python -m papers dada --never", 3, "[Nn]o such option.*--never"),
    "extra": ("sh", 'pip install "coterie[nothing]"', 3, "no extra 'nothing'"),
    "after redirections": ("sh", "coterie peer run ann bob > log 2>&1 &", 3, "unexpected bob"),
    "quotes": ("sh", 'echo "open', 3, "not understood"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_page(page, name):
    text, told = WRONG[name]
    with pytest.raises(pages.PageError, match=told):
        page(text)


@pytest.mark.every_case
@pytest.mark.parametrize("name", NOT_RUN)
def test_a_block_that_is_not_run_is_checked(page, name):
    language, code, line, told = NOT_RUN[name]
    with pytest.raises(pages.PageError, match=f"page.md:{line}: .*{told}"):
        page(f"<!-- not run: other machines -->\n```{language}\n{code}\n```\n")


def test_what_a_block_needs(page):
    page("<!-- needs: no_such_module -->\n```python\nimport no_such_module\n```\n")
    with pytest.raises(pages.PageError, match=r"page.md:3: .*ct.Clutter"):
        page("<!-- needs: no_such_module -->\n```python\nct.Clutter()\n```\n")
    with pytest.raises(pages.PageError, match=r"page.md:3: .*ZeroDivisionError"):
        page("<!-- needs: json -->\n```python\n1 / 0\n```\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("```python\nx = 1\nwhile True:\n    pass\n```\n", "[34]"),
        ("```python\n>>> x = 1\n>>> while True:\n...     pass\n```\n", "3"),
        ("```sh\necho begun\nsleep 1000\n```\n", "1"),
    ],
)
def test_a_block_that_hangs(page, text, line):
    with pytest.raises(pages.PageError, match=rf"page.md:{line}: .*not done after 0.5 seconds"):
        page(text, limit=0.5)


def test_processes_in_the_background_end_with_the_page(page, tmp_path):
    pid = tmp_path / "pid"
    page(f"```sh\nsleep 1000 &\necho $! > {pid}\n```\n\n```sh\nkill -0 $(cat {pid})\n```\n")
    for _ in range(1000):  # a killed process is there until its parent looks
        if not _lives(int(pid.read_text())):
            return
        time.sleep(0.01)
    raise AssertionError("still there")


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_page_leaves_everything_as_it_was(page, tmp_path):
    where, environment = os.getcwd(), dict(os.environ)
    with warnings.catch_warnings():
        before = list(warnings.filters)
        page(
            """
            ```python
            import os, warnings
            import matplotlib.pyplot as plt

            plt.figure()
            plt.show()
            os.environ["A_NEW_NAME"] = "1"
            os.mkdir("below")
            os.chdir("below")
            warnings.simplefilter("ignore")
            ```

            <!-- file: own_module_of_a_page.py -->
            ```python
            x = 1
            ```

            ```python
            import own_module_of_a_page
            ```
            """
        )
        assert warnings.filters == before
    import sys

    import matplotlib.pyplot as plt

    assert not plt.get_fignums()
    assert "own_module_of_a_page" not in sys.modules
    assert (os.getcwd(), dict(os.environ)) == (where, environment)
    with pytest.raises(pages.PageError, match="own_module"):
        page("```python\nimport own_module_of_a_page\n```\n")


def test_a_page_must_not_write_into_the_repository(page, monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(pages.PageError, match=r"must not write into the repository: \['left.txt'\]"):
        page(f"```sh\necho 1 > {tmp_path}/left.txt\n```\n")


def test_new_pages_are_found(tmp_path):
    for name in ("README.md", "docs/a.md", "docs/how-to/b.md", "docs/gallery/made.md", "other/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("<!-- slow: hours -->\n" if name == "docs/a.md" else "text\n")
    found = pages.pages(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == ["README.md", "docs/a.md", "docs/how-to/b.md"]
    assert [pages.slow_reason(path) for path in found] == [None, "hours", None]
