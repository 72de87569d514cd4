"""Build the sdist and the wheel, compare both with the tree, and train from the wheel in an empty environment."""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
BESIDE = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml", "setup.cfg"}
"""Files of the sdist outside the package."""


def run(*command: object, cwd: Path, allowed: int = 0) -> None:
    """Run a command that does not see the tree; stop with its exit code unless that is 0 or `allowed`."""
    print("+", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = subprocess.run(list(map(str, command)), cwd=cwd, env=environment).returncode
    if code not in (0, allowed):
        sys.exit(code)


def compare(archive: Path, files: set[str], expected: set[str]) -> None:
    """Stop if an archive lacks a file, or has one too many."""
    if files != expected:
        sys.exit(f"{archive.name}: missing {sorted(expected - files)}, unexpected {sorted(files - expected)}")
    print(f"{archive.name}: {len(files)} files, {archive.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    """Build, compare, install and train."""
    package = {
        str(file.relative_to(TREE))
        for file in (TREE / "medic").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--quiet", "--outdir", folder, TREE, cwd=folder)
        (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
        with tarfile.open(sdist) as archive:
            files = {member.name.partition("/")[2] for member in archive if member.isfile()}
        compare(sdist, {file for file in files if ".egg-info/" not in file}, package | BESIDE)
        with zipfile.ZipFile(wheel) as archive:
            files = {file for file in archive.namelist() if ".dist-info/" not in file}
        compare(wheel, files, package)

        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        programs = folder / "venv" / "bin"
        run(programs / "pip", "install", "--quiet", "-c", TREE / "constraints.txt", wheel, cwd=folder)
        run(programs / "pip", "check", cwd=folder)
        run(programs / "medic", "--help", cwd=folder)
        short = ["--iterations", "4", "--evaluate-every", "2"]
        settings = ["--dataset", "digits", "--target", "street", "--device", "cpu", *short]
        # So few iterations learn nothing, which is exit code 1.
        run(programs / "medic", "train", *settings, "--name", "first", cwd=folder, allowed=1)
        run(programs / "medic", "report", "runs/first", cwd=folder)


if __name__ == "__main__":
    main()
