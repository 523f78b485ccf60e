"""What the site needs beyond Sphinx: the API reference, written from what packages export."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.nodes import make_refnode

DOCS = Path(__file__).parents[1]
PACKAGES = {
    "gradveil": "The core: all that a client needs",
    "gradveil.messages": "Messages",
    "gradveil.sensitivity": "Sensitivities",
    "gradveil.mechanisms": "Mechanisms",
    "gradveil.shapes": "Shapes and their sources",
    "gradveil.defenses": "Defenses",
    "gradveil.theory": "Bounds and utilities",
    "gradveil.denoising": "Learned priors",
    "gradveil.privacy": "Differential privacy",
    "gradveil.attacks": "Attacks",
    "gradveil.scoring": "Scores",
    "gradveil.audit": "Audits",
    "gradveil.federated": "Federated training",
    "gradveil.flower": "Flower",
    "gradveil.data": "Data",
    "gradveil.models": "Models",
    "gradveil.catalog": "Names as data",
}
"""Every public package and its title, in the order of the reference."""


def homes() -> dict[str, str]:
    """The package that describes each public name: gradveil itself, or the one it is written in."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            written_in = getattr(getattr(module, name), "__module__", package)
            mine = package == "gradveil" or f"{written_in}.".startswith(f"{package}.")
            if mine:
                found.setdefault(name, package)
    for package in PACKAGES:
        for name in import_module(package).__all__:
            found.setdefault(name, package)
    return found


def entry(package: str, name: str, thing: Any) -> str:
    """The directive that describes one public name."""
    if inspect.isclass(thing):
        return f".. autoclass:: {package}.{name}\n"
    if inspect.isfunction(thing):
        return f".. autofunction:: {package}.{name}\n"
    value = f"   :value: {thing!r}\n" if isinstance(thing, str | int | float | tuple) else ""
    return f".. py:data:: {package}.{name}\n{value}"


def heading(text: str, mark: str) -> str:
    """A title with a line under it."""
    return f"{text}\n{mark * len(text)}\n"


def entries(package: str, module: ModuleType, mine: list[str]) -> str:
    """All names that a package describes; gradveil's own under the packages they come from."""
    if package != "gradveil":
        listed = "\n".join(entry(package, name, getattr(module, name)) for name in mine)
        return heading("Names", "-") + "\n" + listed
    groups: dict[str, list[str]] = {}
    for name in mine:
        source = ".".join(getattr(module, name).__module__.split(".")[:2])
        groups.setdefault(PACKAGES.get(source, "Errors"), []).append(name)
    ordered = sorted(groups, key=[*PACKAGES.values(), "Errors"].index)
    return "\n".join(
        heading(title, "-")
        + "\n"
        + "\n".join(entry(package, name, getattr(module, name)) for name in groups[title])
        for title in ordered
    )


def api_page(package: str, home: dict[str, str]) -> str:
    """One page of the reference."""
    module = import_module(package)
    others = [
        name
        for name in module.__all__
        if home[name] != package
        and getattr(module, name) is getattr(import_module(home[name]), name)
    ]
    mine = [name for name in module.__all__ if name not in others]
    parts = [
        heading(package, "="),
        f".. automodule:: {package}\n   :no-members:\n",
        entries(package, module, mine),
    ]
    if others:
        parts.append(heading("Described elsewhere", "-"))
        links = ", ".join(f":py:obj:`~{home[name]}.{name}`" for name in others)
        parts.append(f"{links}.\n")
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Write a page if it changed, so that unchanged ones are not built again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def links_seen_from_docs(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    """Links of included pages lead into docs/ by another way than on their own."""
    content[0] = content[0].replace("](../docs/", "](").replace("](docs/", "](")


def write_pages(app: Sphinx) -> None:
    """Write the reference into docs/generated, which is not committed."""
    home = homes()
    for package in PACKAGES:
        write(DOCS / "generated" / "api" / f"{package}.rst", api_page(package, home))


def find_public_name(app: Sphinx, env: Any, node: pending_xref, content: nodes.Element) -> Any:
    """A name from a private module, as signatures have it, leads to where it is described."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    home = homes().get(name)
    if node.get("refdomain") != "py" or home is None or not target.startswith("gradveil."):
        return None
    full = f"{home}.{name}"
    found = env.get_domain("py").objects.get(full)
    if found is None:
        return None
    return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, [content], full)


def as_written(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Keep bars and stars of docstrings' formulas, which reStructuredText would take for markup."""
    block: int | None = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None and not line.lstrip().startswith((">>>", "...")):
            pieces = re.split(r"(`[^`]*`)", line)
            lines[number] = "".join(
                piece if piece.startswith("`") else re.sub(r"([|*])", r"\\\1", piece)
                for piece in pieces
            )
        if line.rstrip().endswith("::"):
            block = indent


def whole_attribute(docstring: GoogleDocstring) -> tuple[str, list[str]]:
    """An attribute's docstring is all description: what is before a colon in it is no type."""
    return "", docstring._dedent(docstring._consume_to_end())


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    GoogleDocstring._consume_inline_attribute = whole_attribute
    app.connect("builder-inited", write_pages, priority=1)
    app.connect("include-read", links_seen_from_docs)
    app.connect("autodoc-process-docstring", as_written, priority=100)
    app.connect("missing-reference", find_public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
