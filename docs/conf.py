"""The documentation: ``make docs`` writes it to build/docs."""

import ast
import re
from pathlib import Path

from pstn import __version__

HERE = Path(__file__).parent

project = "pstn"
copyright = "the pstn authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"pstn {version}"
html_static_path = ["static"]
html_css_files = ["tables.css"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_use_unqualified_type_names = True
python_display_short_literal_types = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Convention"]
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # names such as theta that several classes have


def pages(text: str) -> str:
    """A tutorial, a script of remarks (``# %%``) and code, as Markdown."""
    opening = ast.get_docstring(ast.parse(text)) or ""
    title, _, rest = opening.partition("\n")
    rest = re.sub(r"(?m)^    (.+)$", r"```sh\n\1\n```", rest)
    parts = [f"# {title.rstrip('.')}", rest]
    code: list[str] = []

    def close() -> None:
        if any(line.strip() for line in code):
            parts.append("```python\n" + "\n".join(code).strip("\n") + "\n```")
        code.clear()

    lines = iter(text.split('"""', 2)[2].splitlines())
    remark = False
    for line in lines:
        if line.startswith("# %%"):
            close()
            parts.append(line[4:].strip())
            remark = True
        elif remark and line.startswith("#"):
            parts[-1] += " " + line[1:].strip()
        else:
            remark = False
            code.append(line)
    close()
    return "\n\n".join(parts)


def replace_tutorials(app: object, name: str, source: list[str]) -> None:
    """A page that names a script is that script."""
    if found := re.search(r"<!-- script: (\S+) -->", source[0]):
        source[0] = pages((HERE / "tutorials" / found[1]).read_text()) + "\n\n" + source[0]


def as_written(app: object, kind: str, name: str, one: object, options: object, lines: list[str]) -> None:
    """Shapes such as (B, *space), and |differences|, are neither emphasis nor substitutions."""
    for i, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"(?<!\w)\*(?=\w+[,)\]])|\|(?=\S)", r"\\\g<0>", part) for part in parts[::2]]
        lines[i] = "".join(parts)


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", replace_tutorials)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", as_written, priority=1)  # type: ignore[attr-defined]
