"""The client as a package of its own: what it imports, and that its wheel works where nothing of ours is."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "python"
THIRD = {"msgspec", "websockets", "typing_extensions", "octavo_client"}


def imports(folder: Path) -> set[str]:
    """The packages that the modules below a folder import."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    return found


def test_the_client_imports_nothing_of_the_product() -> None:
    found = imports(PACKAGE / "src")
    assert "octavo_client" in found
    assert found - set(sys.stdlib_module_names) <= THIRD


@pytest.mark.long
def test_its_wheel_installs_into_a_clean_environment_and_is_typed(tmp_path: Path) -> None:
    def run(*command: str | Path) -> str:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    # Without the network: built by the setuptools that is here, and what it needs is lent from here.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        (source / name).write_bytes((PACKAGE / name).read_bytes())
    for path in (PACKAGE / "src").rglob("*"):
        if path.is_file() and path.suffix in (".py", ".typed"):
            copy = source / path.relative_to(PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path)
    run(sys.executable, "-m", "pip", *build, source)
    (wheel,) = tmp_path.glob("octavo_client-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "octavo_client/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"octavo_client"}
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    there = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for name in ("msgspec", "websockets"):
        (there / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    said = run(python, "-c", "import octavo_client, sys; print(octavo_client.__file__, 'django' in sys.modules)")
    assert said.split() == [str(there / "octavo_client" / "__init__.py"), "False"]
