"""Check a built site: every link inside it leads somewhere, and nothing is loaded from elsewhere.

python docs/_ext/check_site.py build/docs/html

Links to other sites are looked at, not followed: they are listed in external-links.txt beside the site, and ``make
docs-links`` follows them.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes by which an element loads something when the page is shown.
LOADS = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("img", "srcset"),
    ("source", "src"),
    ("source", "srcset"),
    ("iframe", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("video", "src"),
    ("video", "poster"),
    ("audio", "src"),
    ("image", "href"),
    ("image", "xlink:href"),
    ("use", "href"),
    ("use", "xlink:href"),
}
#: Of a <link> that loads nothing: it says something about the page.
SAYS = {"canonical", "next", "prev", "index", "search", "license", "alternate", "author"}
_REMOTE = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
_CSS = re.compile(
    r"""@import\s+(?:url\(\s*)?["']?((?:https?:)?//[^"')\s;]+)|url\(\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE
)
_CODE = re.compile(r"""(?:\bimport\s*\(|\bfrom\s*|importScripts\(|fetch\(|\.src\s*=)\s*["'`]((?:https?:)?//[^"'`]+)""")


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every element is looked at once."""
        self._inside = tag
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.loads += _css(found.get("style", ""))
        for name, value in found.items():
            if tag == "a" and name == "href":
                self.links.append(value)
            elif (tag, name) in LOADS and not (tag == "link" and SAYS & set(found.get("rel", "").split())):
                self.loads += re.findall(r"(?:^|,)\s*(\S+)", value) if name == "srcset" else [value]

    def handle_data(self, data: str) -> None:
        """Styles and programs in the page."""
        if self._inside == "style":
            self.loads += _css(data)
        elif self._inside == "script":
            self.loads += _CODE.findall(data)

    def handle_endtag(self, tag: str) -> None:
        """Text after a style is no style."""
        self._inside = ""


def _css(text: str) -> list[str]:
    return [first or second for first, second in _CSS.findall(text)]


def check(site: Path) -> tuple[list[str], list[str]]:
    """What is wrong with a site, a line for each; and its links to other sites."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = [] if pages else [f"{site}: no pages"]
    external = set()
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        for link in page.links:
            if re.match(r"[a-z][a-z0-9+.-]*:|//", link, re.IGNORECASE):
                external.add(link)
                wrong += [f"{name}: link to {link}: {why}" for why in [_malformed(link)] if why]
            else:
                wrong += [f"{name}: link to {link}: {why}" for why in [_broken(link, path, pages)] if why]
        for load in page.loads:
            if _REMOTE.match(load):
                wrong.append(f"{name}: loads {load}: ship it with the site")
            elif not load.startswith("data:") and (why := _broken(load, path, pages)):
                wrong.append(f"{name}: loads {load}: {why}")
    for pattern, loads in (("*.css", _css), ("*.js", _CODE.findall), ("*.svg", _css)):
        for path in sorted(site.rglob(pattern)):
            name = path.relative_to(site).as_posix()
            found = loads(path.read_text(encoding="utf-8"))
            wrong += [f"{name}: loads {load}: ship it with the site" for load in found]
    return wrong, sorted(external)


def _broken(link: str, path: Path, pages: dict[Path, Page]) -> str:
    """Why a link inside the site leads nowhere; nothing if it leads somewhere."""
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "there is no such file"
    if target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
        return f"there is no #{parts.fragment} on that page"
    return ""


def _malformed(link: str) -> str:
    """Why an address cannot be right."""
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return "" if re.fullmatch(r"[^@\s]+@[^@\s]+\.[a-z]+", parts.path) else "no address of mail"
    if parts.scheme not in ("http", "https"):
        return "neither https nor http nor mailto"
    if not re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}(:\d+)?", parts.netloc, re.IGNORECASE) or re.search(r"\s", link):
        return "no address of a site"
    return ""


def main() -> int:
    """Say what is wrong; 1 if something is."""
    site = Path(sys.argv[1])
    wrong, external = check(site)
    listing = site.parent / "external-links.txt"
    listing.write_text("\n".join(external) + "\n", encoding="utf-8")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    pages = sum(1 for _ in site.rglob("*.html"))
    print(f"{pages} pages, {len(wrong)} broken links or remote loads; {len(external)} links to other sites: {listing}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
