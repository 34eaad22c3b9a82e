"""For the scripts of the whole ways: a command in this process, which must end with the given exit code."""

from pathlib import Path

from tests.commands import opasd


def command(*words: str, code: int = 0) -> str:
    """Run `opasd` in the current folder and return all that it prints."""
    result = opasd(Path.cwd(), *words)
    assert result.returncode == code, (words, result)
    return result.stdout + result.stderr
