"""What the wheel carries, and that the checkout and the wheel find their files."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from robustops import resources
from robustops.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built through a source distribution as a release is."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return zipfile.ZipFile(next(out.glob("*.whl")))


def files_in(folder: Path, pattern: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.glob(pattern) if path.is_file()}


@pytest.mark.slow
def test_the_wheel_has_every_config_module_and_the_embedded_models(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"robustops/_conf/{name}" for name in files_in(ROOT / "conf", "**/*.yaml")} <= names
    for model in ("arithmetic", "tiny"):
        files = files_in(ROOT / "data" / "models" / model, "*")
        assert files and {f"robustops/_data/models/{model}/{name}" for name in files} <= names
    modules = files_in(ROOT / "robustops", "**/*.py")
    assert {f"robustops/{name}" for name in modules} <= names


@pytest.mark.slow
def test_the_wheel_has_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"robustops"}


@pytest.mark.slow
def test_an_unpacked_wheel_uses_its_own_copies(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        "from robustops.resources import conf_dir, data_dir, in_checkout; from robustops.cli import main; "
        "print(conf_dir()); print(data_dir()); print(in_checkout()); main(['train', '--cfg', 'job'])"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(
        [sys.executable, "-P", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    conf, data, checkout, *config = found.stdout.splitlines()
    assert Path(conf) == tmp_path / "robustops" / "_conf"
    assert Path(data) == tmp_path / "robustops" / "_data"
    assert checkout == "False"
    assert "stages:" in config


def test_a_checkout_uses_its_own_folders() -> None:
    assert resources.conf_dir() == ROOT / "conf"
    assert resources.data_dir() == ROOT / "data"
    assert resources.in_checkout()


def test_data_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUSTOPS_DATA", str(tmp_path))
    assert resources.data_dir() == tmp_path
    monkeypatch.setenv("ROBUSTOPS_DATA", str(tmp_path / "nix"))
    with pytest.raises(ConfigError, match="is no folder"):
        resources.data_dir()


def test_no_setting_stands_in_both_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = (ROOT / "setup.cfg").read_text(encoding="utf-8").splitlines()
    sections = {line.strip("[]").split(":")[-1] for line in lines if line.startswith("[")}
    assert not sections & set(project["tool"])


def test_the_version_is_the_packages_own() -> None:
    from robustops import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == __version__


def test_scripts_of_the_readme_are_there_and_executable() -> None:
    for name in ("scripts/run.sh", "scripts/test.sh", "scripts/dev", ".ci/run"):
        path = ROOT / name
        assert path.stat().st_mode & 0o111, f"{name} is not executable"
        subprocess.run(["bash", "-n", str(path)], check=True, timeout=20)


def test_the_readme_names_every_command_and_its_two_scripts_first() -> None:
    from robustops.cli import COMMANDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"robustops {name}" in text for name in COMMANDS)
    assert 0 < text.index("scripts/run.sh") < text.index("scripts/test.sh") < text.index("robustops evaluate")
