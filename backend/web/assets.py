"""The files of assets/, and its JavaScript, modules that import one another, as one script."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "assets"

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w.]+)";$', re.MULTILINE)
#: What only readers of a file need: lines that are comments, and what begins lines.
_SPARE = re.compile(r"^[ ]*//.*\n|^[ ]+", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const) (\w+))", re.MULTILINE)


def asset(name: str) -> str:
    """The text of a file."""
    return (ASSETS / name).read_text(encoding="utf-8")


def script_of(*names: str) -> str:
    """These modules and all that they import as a script that imports nothing. It defines
    `modules`: what each of them exports, by the name of its file.
    """
    imported: dict[str, list[str]] = {}
    left = [*names]
    while left:
        name = left.pop()
        if name not in imported:
            imported[name] = [other for _, other in _IMPORT.findall(asset(name))]
            left += imported[name]
    order = TopologicalSorter(imported).static_order()
    return "".join(["const modules = {};\n", *map(_as_function, order)])


def _as_function(name: str) -> str:
    """A module as a function that is called once, and gives what the module exports."""
    code = _SPARE.sub("", _IMPORT.sub(r'const \1 = modules["\2"];', asset(name)))
    given = ", ".join(exported for _, exported in _EXPORT.findall(code))
    plain = _EXPORT.sub(r"\1", code)
    return f'modules["{name}"] = (() => {{\n{plain}return {{ {given} }};\n}})();\n'
