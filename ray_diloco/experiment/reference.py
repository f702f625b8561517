"""The configuration reference, made from the schema's docstrings and the files of ``conf``.

``python -m ray_diloco.experiment.reference`` prints it; with ``--write FILE`` it replaces what the
file has between `BEGIN` and `END`.
"""

import ast
import dataclasses
import inspect
import sys
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ray_diloco.experiment.conf_folder import conf_dir
from ray_diloco.experiment.schema import Config
from ray_diloco.experiment.sweep.settings import LauncherSettings
from ray_diloco.timing.profile import NodeProfile

BEGIN = "<!-- settings -->"
END = "<!-- /settings -->"
_GROUPS_ONLY = (
    "experiment",
    "merge",
    "inner_schedule",
    "outer",
    "weighting",
    "staleness",
    "aggregation",
    "codec",
    "fragments",
    "debug",
)
"""Folders of conf that are no group of settings."""


def reference() -> str:
    """Markdown: for each group its files and its settings, with the defaults of ``ray-diloco``."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed: Any = OmegaConf.to_container(compose("config"))
    parts = [_group(field, composed[field.name]) for field in dataclasses.fields(Config)]
    parts.insert(3, _profiles())
    parts.append(_launcher())
    parts += [f"### `{group}`\n\n{_files(group)}" for group in _GROUPS_ONLY]
    return "\n\n".join(parts) + "\n"


def replace_between_markers(text: str, new: str) -> str:
    """The text with ``new`` between the markers; ValueError when it does not have both."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected {BEGIN} and, after it, {END}")
    return f"{before}{BEGIN}\n\n{new}\n{END}{after}"


def field_docs(settings: type) -> dict[str, str]:
    """What each field of a dataclass means: the string below it, or the comment above it."""
    tree, lines = _source_of(settings)
    docs: dict[str, str] = {}
    body = tree.body
    for index, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            following = body[index + 1] if index + 1 < len(body) else None
            docs[node.target.id] = _string(following) or _comment_above(lines, node.lineno)
    return {field.name: docs.get(field.name, "") for field in dataclasses.fields(settings)}


def main() -> None:
    """Print the reference, or write it into a file."""
    match sys.argv[1:]:
        case []:
            sys.stdout.write(reference())
        case ["--write", name]:
            path = Path(name)
            path.write_text(replace_between_markers(path.read_text(), reference()))
        case _:
            sys.exit("usage: python -m ray_diloco.experiment.reference [--write FILE]")


def _group(field: dataclasses.Field[Any], values: dict[str, Any]) -> str:
    settings = _settings_class(field)
    meaning = field_docs(Config)[field.name]
    files = _files(field.name)
    rows = _rows(settings, field.name, values)
    return "\n\n".join(part for part in (f"### `{field.name}`", meaning, files, rows) if part)


def _profiles() -> str:
    default = dataclasses.asdict(NodeProfile())
    rows = _rows(NodeProfile, "cluster.profiles[i]", default)
    return f"### `cluster.profiles[i]`\n\nOne machine and its link.\n\n{rows}"


def _launcher() -> str:
    rows = _rows(LauncherSettings, "hydra.launcher", dataclasses.asdict(LauncherSettings()))
    return f"### `hydra.launcher`\n\nHow `ray-diloco -m` runs its trials.\n\n{rows}"


def _rows(settings: type, group: str, values: dict[str, Any]) -> str:
    docs = field_docs(settings)
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(settings):
        value = _shown(values[field.name])
        lines.append(f"| `{group}.{field.name}` | `{value}` | {_cell(docs[field.name])} |")
    return "\n".join(lines)


def _files(group: str) -> str:
    """The files of a group, each with its first sentence of a comment."""
    lines = []
    for path in sorted((conf_dir() / group).glob("*.yaml")):
        comments = [
            line.removeprefix("#").strip()
            for line in path.read_text().splitlines()
            if line.startswith("#") and "@package" not in line
        ]
        told = [line for line in comments if line and not line.startswith("ray-diloco ")]
        lines.append(f"- `{group}={path.stem}`: {' '.join(told)}")
    return "\n".join(lines)


def _settings_class(field: dataclasses.Field[Any]) -> type:
    found = field.default_factory
    assert isinstance(found, type)
    return found


def _shown(value: Any) -> str:
    match value:
        case StrEnum():
            return value.value
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() if value and isinstance(value[0], dict):
            return f"{len(value)} profiles"
        case _:
            return str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`").replace("<", "&lt;")


@lru_cache
def _source_of(settings: type) -> tuple[ast.ClassDef, list[str]]:
    source = inspect.getsource(sys.modules[settings.__module__])
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == settings.__name__:
            return node, source.splitlines()
    raise LookupError(settings.__name__)


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _comment_above(lines: list[str], line_number: int) -> str:
    line = lines[line_number - 2].strip()
    return line.removeprefix("#").strip() if line.startswith("#") else ""


if __name__ == "__main__":
    main()
