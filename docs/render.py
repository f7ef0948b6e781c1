"""Write measured figures into the README: every number between markers comes from results/ or benchmarks/.

Run it after new results: ``python docs/render.py``. The tests check that it would change nothing.
"""

import json
import re
from pathlib import Path

from pstn.demo.results import table, verdict

ROOT = Path(__file__).parents[1]


def demo() -> str:
    """The demonstration's table, where it came from, and how the P-STN stands."""
    results = json.loads((ROOT / "results/demo.json").read_text())
    found = results["environment"]
    versions = f"torch {found['versions']['torch']}, Python {found['versions']['python']}"
    source = f"`{results['command']}`, {found['device']}, {versions}, commit {found['commit'][:10]}"
    shown = table(results)
    return f"{shown.title}\n\n{shown.markdown()}\n\n{' '.join(verdict(results))}\n\n<sub>{source}</sub>"


SECTIONS = {"demo": demo}


def rendered(text: str) -> str:
    """The text with every section between its markers."""
    for name, section in SECTIONS.items():
        block = f"<!-- {name} -->\n{section()}\n<!-- /{name} -->"
        text = re.sub(rf"<!-- {name} -->.*<!-- /{name} -->", lambda _, block=block: block, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(rendered(readme.read_text()))
