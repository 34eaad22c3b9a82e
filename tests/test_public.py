"""The public names, and what importing them costs."""

import subprocess
import sys

import pytest

import opasd


@pytest.mark.parametrize("name", opasd.__all__)
def test_every_public_name_is_there(name):
    assert getattr(opasd, name) is not None


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = opasd.nothing


def test_importing_the_package_and_its_configuration_imports_no_torch():
    code = "import sys, opasd.config, opasd.data.problems; print('torch' in sys.modules, 'transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
