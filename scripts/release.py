"""Make a release: version, changelogs, addresses, commit, tag, wheel and sdist, and a trial of the wheel by itself.

    python -m scripts.release 0.2.0 --dry-run      # everything, in a copy that is thrown away
    python -m scripts.release 0.2.0                # leaves a commit, the tag v0.2.0 and dist/; pushes nothing

The wheel is installed into a new environment, away from the checkout, and does a small job there. If anything fails,
the repository is as it was.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 5_000_000
"""Bytes that a wheel or an sdist may have."""


class ReleaseError(Exception):
    """Why a release cannot be made, and what to do."""


def release(root: Path, version: str, dist: Path, *, day: str, download: bool) -> list[Path]:
    """Commit and tag the version in `root`, build into `dist` and check the wheel; return what was built."""
    _refuse(root, version)
    before = _git(root, "rev-parse", "HEAD")
    try:
        _write_version(root, version, day)
        _write_urls(root)
        _git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
        built = build(root, dist)
        check_wheel(next(path for path in built if path.suffix == ".whl"), version, root, download=download)
        _git(root, "tag", "--annotate", f"v{version}", "--message", f"opasd {version}")
    except BaseException:
        _git(root, "reset", "--quiet", "--hard", before)
        raise
    return built


def _refuse(root: Path, version: str) -> None:
    """Refuse what cannot become a release, before anything is changed."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise ReleaseError(f"a version is like 0.2.0 or 0.2.0rc1, not {version!r}")
    if _git(root, "status", "--porcelain"):
        raise ReleaseError("the repository has changes that are not committed; commit or stash them first")
    if _git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} is there already; choose the next version")
    if len(re.findall(r"^## .*\(unreleased\)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)) != 1:
        raise ReleaseError("CHANGELOG.md needs one heading that ends in (unreleased), with what changed for users")
    if "(unreleased)" not in (root / "docs/changelog.md").read_text("utf-8"):
        raise ReleaseError("docs/changelog.md needs a heading that ends in (unreleased), with what a user notices")


def _write_version(root: Path, version: str, day: str) -> None:
    """Write the version where it stands: the package, both changelogs and CITATION.cff."""
    for name, pattern, new in (
        ("src/opasd/__init__.py", r'^__version__ = ".*"$', f'__version__ = "{version}"'),
        ("CHANGELOG.md", r"^## .*\(unreleased\)$", f"## {version} ({day})"),
        ("docs/changelog.md", r"^## .*\(unreleased\)$", f"## {version} ({day})"),
        ("CITATION.cff", r"^version: .*$", f"version: {version}"),
        ("CITATION.cff", r"^date-released: .*$", f"date-released: {day}"),
    ):
        path = root / name
        text, found = re.subn(pattern, new, path.read_text("utf-8"), flags=re.MULTILINE)
        if found != 1:
            raise ReleaseError(f"{name} has {found} lines that match {pattern}; it must have one")
        path.write_text(text, "utf-8")


def _write_urls(root: Path) -> None:
    """Write the addresses of the project, if its repository has one and pyproject.toml names none."""
    path, heading = root / "pyproject.toml", "[project.urls]"
    home = address(_git(root, "config", "--default", "", "--get", "remote.origin.url"))
    text = path.read_text("utf-8")
    if home and heading not in text:
        pages = {"Repository": "", "Issues": "/issues"}
        pages |= {"Documentation": "/blob/HEAD/docs/index.md", "Changelog": "/blob/HEAD/CHANGELOG.md"}
        lines = "".join(f'{name} = "{home}{page}"\n' for name, page in pages.items())
        path.write_text(text.replace("[project.scripts]", f"{heading}\n{lines}\n[project.scripts]", 1), "utf-8")


def address(remote: str) -> str | None:
    """Return the address in a browser of a repository that git reaches by `remote`; None if that is on this machine."""
    match = re.fullmatch(r"(?:https|ssh)://(?:[^@/]*@)?([^:/@]+)(?::\d+)?/(.+?)(?:\.git)?/?", remote)
    match = match or re.fullmatch(r"[\w-]+@([\w.-]+):(.+?)(?:\.git)?/?", remote)
    return f"https://{match[1]}/{match[2]}" if match else None


def build(root: Path, dist: Path) -> list[Path]:
    """Build wheel and sdist of `root` into `dist`, with the hatchling that is installed."""
    _run(sys.executable, "-m", "hatchling", "build", "--directory", str(dist.resolve()), cwd=root)
    built = sorted(dist.glob("opasd-*"))
    for path in built:
        if path.stat().st_size > LARGEST:
            raise ReleaseError(f"{path.name} has {path.stat().st_size:,} bytes; at most {LARGEST:,} may go out")
    return built


def check_wheel(wheel: Path, version: str, root: Path, *, download: bool) -> None:
    """Install the wheel into a new environment and use it in an empty folder.

    With `download` the packages it needs are installed too; without, those of this interpreter are used.
    """
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder) / "environment", Path(folder) / "work"
        work.mkdir()
        venv.create(home, symlinks=True)
        python = home / "bin" / "python"
        extra = ["--constraint", str(root / "constraints.txt")] if download else ["--no-deps", "--no-index"]
        _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *extra, str(wheel.resolve()))
        if not download:
            packages = Path(_run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
            (packages / "_borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        found = _run(str(python), "-c", "import opasd; print(opasd.__file__)", cwd=work).strip()
        if home.resolve() not in Path(found).resolve().parents:
            raise ReleaseError(f"the new environment imports opasd from {found}, not from the wheel")
        command = str(home / "bin" / "opasd")
        told = _run(command, "--version", cwd=work).strip()
        if told != f"opasd {version}":
            raise ReleaseError(f"the wheel says {told!r}, not 'opasd {version}'")
        small = ("--steps", "1", "--train.gradient-accumulation-steps", "1", "--validation.every", "0")
        small += ("--train.per-device-train-batch-size", "2", "--max-new-tokens", "8", "--data.sample", "8")
        _run(command, "train", "lab", "--name", "release", *small, cwd=work)
        if not (work / "runs" / "release" / "final" / "README.md").exists():
            raise ReleaseError("the wheel's one step of training left no runs/release/final")


def _git(root: Path, *arguments: str) -> str:
    return _run("git", *arguments, cwd=root).strip()


def _run(*command: str, cwd: Path | None = None) -> str:
    """Run a command and return what it printed; an error has its last lines."""
    left = ("PIP_CONSTRAINT", "PYTHONPATH") if command[0] != sys.executable else ("PIP_CONSTRAINT",)
    clean = {name: value for name, value in os.environ.items() if name not in left}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ReleaseError(f"{' '.join(command)} ended with {done.returncode}:\n{last}")
    return done.stdout


def main(arguments: list[str] | None = None) -> None:
    """Make the release, or a dry run of it."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description="Make a release of opasd.")
    parser.add_argument("version", help="such as 0.2.0")
    parser.add_argument("--dry-run", action="store_true", help="do all of it in a copy that is thrown away")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheel and the sdist go")
    parser.add_argument(
        "--no-download", action="store_true", help="check the wheel with the packages of this interpreter"
    )
    given = parser.parse_args(arguments)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        with tempfile.TemporaryDirectory() as folder:
            root, dist = ROOT, Path(folder) / "dist"
            if given.dry_run:
                root = Path(folder) / "copy"
                _git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(root))
                for name, value in (("user.name", "dry run"), ("user.email", "dry-run@localhost")):
                    _git(root, "config", name, value)
            built = release(root, given.version, dist, day=day, download=not given.no_download)
            given.dist.mkdir(parents=True, exist_ok=True)
            for path in built:
                shutil.copy2(path, given.dist)
                sys.stdout.write(f"{given.dist / path.name}  {path.stat().st_size:,} bytes\n")
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    tail = (
        "a dry run: the repository is as it was"
        if given.dry_run
        else f"git push --follow-tags publishes v{given.version}"
    )
    sys.stdout.write(f"opasd {given.version}: built, and the wheel works in a new environment; {tail}\n")


if __name__ == "__main__":
    main()
