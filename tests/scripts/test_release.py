"""A dry run of a release: what is built, what is in it, and that the repository stays as it was."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts import release

pytest.importorskip("hatchling", reason="the release builds with hatchling (make test installs it)")
ROOT = Path(__file__).parents[2]


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A clone with what is in the working tree, as one commit."""
    folder = tmp_path_factory.mktemp("release") / "copy"
    git(ROOT, "clone", "--quiet", "--no-hardlinks", "--depth", "1", f"file://{ROOT}", str(folder))
    tracked = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in tracked:
        if (ROOT / name).is_file() and not name.startswith("results/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    for name, value in (("user.name", "test"), ("user.email", "test@localhost")):
        git(folder, "config", name, value)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "what is there")
    return folder


@pytest.fixture(scope="module")
def dist(copy, tmp_path_factory):
    """The result of a dry run with a version that will not come."""
    folder = tmp_path_factory.mktemp("dist")
    before = git(copy, "rev-parse", "HEAD")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "ROOT", copy)
        release.main(["99.1.0", "--dry-run", "--no-download", "--dist", str(folder)])
    assert git(copy, "rev-parse", "HEAD") == before
    assert git(copy, "status", "--porcelain") == ""
    assert git(copy, "tag", "--list", "v99.1.0") == ""
    return folder


def test_the_wheel_has_what_the_package_needs_and_nothing_else(dist):
    (wheel,) = dist.glob("opasd-99.1.0-*.whl")
    assert wheel.stat().st_size <= 5_000_000
    names = zipfile.ZipFile(wheel).namelist()
    about = zipfile.Path(wheel, "opasd-99.1.0.dist-info/METADATA").read_text("utf-8")
    assert re.findall(r"^Provides-Extra: (gpu|vllm|quant|track|dev)$", about, re.MULTILINE) == sorted(
        ("gpu", "vllm", "quant", "track", "dev")
    )
    package = ROOT / "src" / "opasd"
    tracked = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "src/opasd").splitlines()
    wanted = {f"opasd/{(ROOT / name).relative_to(package)}" for name in tracked if (ROOT / name).is_file()}
    assert {"opasd/py.typed", "opasd/lab/model/model.safetensors", "opasd/recipes/lab/lab.yaml"} <= wanted
    assert {name for name in names if not name.startswith("opasd-99.1.0.dist-info/")} == wanted


def test_the_sdist_builds_the_same_and_leaves_the_records_out(dist, tmp_path):
    (sdist,) = dist.glob("opasd-99.1.0.tar.gz")
    assert sdist.stat().st_size <= 5_000_000
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "CITATION.cff", "tests/test_public.py", "constraints.txt"} <= names
    assert not [name for name in names if name.startswith(("results/", "site/", "dist/"))]
    assert not [name for name in names if name.endswith((".tgz", ".tar.xz", ".pdf"))]
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "again")]
    subprocess.run(command, cwd=tmp_path / "opasd-99.1.0", check=True, capture_output=True)
    (again,), (wheel,) = (tmp_path / "again").glob("*.whl"), dist.glob("*.whl")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_a_release_leaves_a_commit_and_a_tag_and_refuses_the_same_again(copy, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "check_wheel", lambda *_, **__: None)  # the dry run above did it
    before, origin = git(copy, "rev-parse", "HEAD"), git(copy, "remote", "get-url", "origin")
    git(copy, "remote", "set-url", "origin", "git@example.org:someone/opasd.git")
    try:
        release.release(copy, "99.2.0", tmp_path, day="2027-01-02", download=False)
        assert git(copy, "log", "-1", "--format=%s") == "Release 99.2.0"
        assert git(copy, "cat-file", "-t", "v99.2.0") == "tag"
        assert '__version__ = "99.2.0"' in (copy / "src/opasd/__init__.py").read_text()
        assert "\n## 99.2.0 (2027-01-02)\n" in (copy / "CHANGELOG.md").read_text()
        assert "\n## 99.2.0 (2027-01-02)\n" in (copy / "docs/changelog.md").read_text()
        assert "date-released: 2027-01-02" in (copy / "CITATION.cff").read_text()
        urls = tomllib.loads((copy / "pyproject.toml").read_text())["project"]["urls"]
        assert urls["Repository"] == "https://example.org/someone/opasd"
        assert {"Documentation", "Changelog", "Issues"} < urls.keys()
        (wheel,) = tmp_path.glob("*.whl")
        assert (
            b"Project-URL: Issues, https://example.org/someone/opasd/issues"
            in zipfile.Path(wheel, "opasd-99.2.0.dist-info/METADATA").read_bytes()
        )
        with pytest.raises(release.ReleaseError, match="v99.2.0 is there already"):
            release.release(copy, "99.2.0", tmp_path, day="2027-01-02", download=False)
        with pytest.raises(release.ReleaseError, match=r"needs one heading that ends in \(unreleased\)"):
            release.release(copy, "99.3.0", tmp_path, day="2027-01-02", download=False)
    finally:
        git(copy, "reset", "--quiet", "--hard", before)
        git(copy, "tag", "--delete", "v99.2.0")
        git(copy, "remote", "set-url", "origin", origin)


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://example.org/a/opasd.git", "https://example.org/a/opasd"),
        ("https://name:word@example.org/a/opasd", "https://example.org/a/opasd"),
        ("ssh://git@example.org:22/a/opasd.git/", "https://example.org/a/opasd"),
        ("git@example.org:a/b/opasd.git", "https://example.org/a/b/opasd"),
        ("/srv/git/opasd", None),
        ("file:///srv/git/opasd", None),
        ("../opasd", None),
    ],
)
def test_the_address_of_a_repository_is_that_of_its_origin(remote, address):
    assert release.address(remote) == address


def test_a_failed_check_leaves_the_repository_as_it_was(copy, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise release.ReleaseError("the wheel is broken")

    monkeypatch.setattr(release, "check_wheel", broken)
    before = git(copy, "rev-parse", "HEAD")
    with pytest.raises(release.ReleaseError, match="the wheel is broken"):
        release.release(copy, "99.4.0", tmp_path, day="2027-01-02", download=False)
    assert git(copy, "rev-parse", "HEAD") == before
    assert git(copy, "tag", "--list", "v99.4.0") == ""


@pytest.mark.parametrize("version", ["1", "v1.2.3", "1.2.3.4", "1.2.x"])
def test_what_is_no_version_is_refused(version, copy):
    with pytest.raises(release.ReleaseError, match="a version is like"):
        release.release(copy, version, copy / "dist", day="2027-01-02", download=False)
