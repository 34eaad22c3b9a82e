"""Which plugins are imported: those that someone names or has installed, never those of a run's folder."""

import sys

import pytest

from opasd import plugins
from opasd.errors import ConfigError
from opasd.recipes.checking import to_config


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module in the current folder that no one has imported."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("imported = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)
    plugins.LOADED.discard(name)


def test_a_recipe_loads_its_plugins(module):
    assert to_config({"plugins": [module]}, "recipe").plugins == (module,)
    assert sys.modules[module].imported


def test_a_runs_folder_loads_none(module):
    with pytest.raises(ConfigError, match=f"needs the plugins {module}.*--plugins {module} if you trust them"):
        to_config({"plugins": [module]}, "runs/x/config.yaml", of_run=True)
    assert module not in sys.modules
    plugins.load([module])
    assert to_config({"plugins": [module]}, "runs/x/config.yaml", of_run=True).plugins == (module,)


def test_an_installed_package_declares_a_plugin(module, tmp_path, monkeypatch):
    about = tmp_path / "own-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[opasd.plugins]\nown = {module}\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load_installed()
    assert sys.modules[module].imported


@pytest.mark.parametrize("names", [None, "text", [1], {"a": 1}])
def test_a_strange_list_is_left_to_its_checker(names):
    plugins.load(names)
    assert plugins.missing(names) == []


def test_a_plugin_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no luck')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match=r"broken_plugin cannot be imported \(RuntimeError: no luck\)"):
        plugins.load(["broken_plugin"])
