"""Hooks for mkdocs: pages from outside docs/, and formulas.

The README, the results and the benchmarks stay where a reader of the repository expects them. The site shows the same
files, with the links between them adjusted. Formulas are converted to MathML at build time, so that no script is needed
to read them.
"""

import html
import posixpath
import re
from pathlib import Path

import latex2mathml.converter
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "LICENSE": "LICENSE",
    "CITATION.cff": "CITATION.cff",
    "benchmarks/README.md": "benchmarks/README.md",
    **{
        path: path
        for pattern in ("*.md", "*/*.md", "*/*.png", "*/*.html")
        for path in sorted(found.relative_to(ROOT).as_posix() for found in (ROOT / "results").glob(pattern))
    },
}
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

LOGARITHM = re.compile(r"(<mi>log</mi>)(?=<m(?:i|n|sub|sup|subsup)\b)")  # latex2mathml leaves no space after it


def on_files(files, config):
    """Add the pages that live outside docs/."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Turn links between files of the repository into links between pages of the site."""
    uri = page.file.src_uri
    source = next((path for path, known in PAGES.items() if known == uri), f"docs/{uri}")

    def relink(match):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        target = PAGES.get(path, path.removeprefix("docs/"))
        return match[1] + posixpath.relpath(target, posixpath.dirname(uri) or ".") + match[3]

    return LINK.sub(relink, markdown)


def on_page_content(content, **_):
    """Convert the formulas that arithmatex has marked to MathML."""

    def convert(match):
        display = "block" if match[1] == "div" else "inline"
        formula = latex2mathml.converter.convert(html.unescape(match[2]).strip(), display=display)
        return LOGARITHM.sub(r'\1<mspace width="0.17em"/>', formula)

    return FORMULA.sub(convert, content)
