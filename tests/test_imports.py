"""The one-way rule of imports, read off the source, and what a light import may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import robustops

PACKAGE = Path(robustops.__file__).parent
#: Layers from the bottom up; a module may import from its own layer's row (see SIBLINGS) and below.
LAYERS = (
    ("records", "errors", "extras", "files", "seeding", "resources", "settings", "_conf", "_data"),
    ("worlds",),
    ("faults", "tasks"),
    ("rollout", "monitor", "rewards", "objectives"),
    ("learning", "bench", "serving", "tracking"),
    ("schema", "validation", "commands", "cli"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HEAVY = {"torch", "lightning", "transformers", "vllm", "deepspeed", "hydra", "omegaconf"}
TORCH_FREE = ("worlds", "faults", "tasks", "monitor")
#: Files of the monitor for one trainer each.
CALLBACKS = ("monitor/callback.py", "monitor/callback_transformers.py")
KNOW_HYDRA = ("commands", "schema")
KNOW_VLLM = ("rollout/vllm.py", "rollout/vllm_transfer.py")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """First name below the package: `worlds` of worlds/domains/itsm/tools.py, `cli` of cli.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Absolute names of all imports of a module, those inside functions too; not those for typing only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for child in block.body
        for node in ast.walk(child)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            base = node.module or ""
            names |= {f"{base}.{alias.name}" for alias in node.names} if base == "robustops" else {base}
    return names


def own_parts(path: Path) -> set[str]:
    """Parts of the package that a module imports."""
    found = {name.split(".")[1] for name in imported(path) if name.startswith("robustops.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        assert not own_parts(path)
        return
    assert part in LEVEL, f"'{part}' is in no layer; add it to LAYERS"
    for other in own_parts(path):
        assert other in LEVEL, f"'{other}' is in no layer; add it to LAYERS"
        assert LEVEL[other] <= LEVEL[part], f"{part} imports {other}, which is a layer above it"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    part, place = part_of(path), path.relative_to(PACKAGE).as_posix()
    found = {name.split(".")[0] for name in imported(path)} & HEAVY
    if part in TORCH_FREE and place not in CALLBACKS:
        assert not found & {"torch", "lightning", "transformers", "vllm", "deepspeed"}
    if part not in KNOW_HYDRA:
        assert not found & {"hydra", "omegaconf"}
    if part == "objectives":
        assert found <= {"torch"}
        assert own_parts(path) <= {"objectives", "rewards", "records", "errors"}, (
            "objectives are pure mathematics"
        )
    if place not in KNOW_VLLM:
        assert "vllm" not in found


def test_the_walk_sees_imports_inside_functions_but_not_those_for_typing(tmp_path: Path) -> None:
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import vllm\n"
    )
    path = tmp_path / "module.py"
    path.write_text(source)
    assert imported(path) == {"typing", "vllm"}


@pytest.mark.parametrize("place", KNOW_VLLM)
def test_vllm_is_imported_lazily(place: str) -> None:
    tree = ast.parse((PACKAGE / place).read_text(encoding="utf-8"))
    at_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in at_top if ast.unparse(node).split()[1].split(".")[0] == "vllm"]


def test_torch_free_parts_leave_torch_unloaded() -> None:
    names = [
        f"robustops.{path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}"
        for part in TORCH_FREE
        for path in sorted((PACKAGE / part).rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
        and path.relative_to(PACKAGE).as_posix() not in CALLBACKS
    ]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"loaded = {sorted(HEAVY)!r} and [n for n in {sorted(HEAVY)!r} if n in sys.modules]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
