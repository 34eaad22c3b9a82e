"""No file of the package has more than 400 lines, and no function more than 60 from its `def` to its end."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "opasd"
FILE_LINES, FUNCTION_LINES = 400, 60
LARGER_FILES: set[str] = set()
"""Files that may be larger, such as `trainer/trainer.py`."""
LONGER_FUNCTIONS: set[str] = set()
"""Functions that may be longer, such as `trainer/trainer.py OPASDTrainer.train`."""


def sources() -> dict[str, str]:
    """Every file's text by its path in the package."""
    return {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def function_lines(node: ast.AST, outer: str = "") -> dict[str, int]:
    """The lines of every function in a node, methods and inner functions too, by its dotted name."""
    found: dict[str, int] = {}
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{outer}.{child.name}".strip(".")
            if not isinstance(child, ast.ClassDef):
                assert child.end_lineno is not None
                found[name] = max(found.get(name, 0), child.end_lineno - child.lineno + 1)
        for inner, lines in function_lines(child, name).items():
            found[inner] = max(found.get(inner, 0), lines)
    return found


def test_the_lines_of_functions_are_counted_from_def_to_end():
    text = """
class A:
    @property
    def f(self):
        if True:
            def g():
                pass
        return 1
"""
    assert function_lines(ast.parse(text)) == {"A.f": 5, "A.f.g": 2}


def test_only_the_files_listed_are_larger():
    texts = sources()
    assert len(texts) > 100
    assert {path for path, text in texts.items() if len(text.splitlines()) > FILE_LINES} == LARGER_FILES


def test_only_the_functions_listed_are_longer():
    found = {
        f"{path} {name}": lines
        for path, text in sources().items()
        for name, lines in function_lines(ast.parse(text)).items()
    }
    assert len(found) > 1000
    assert {name for name, lines in found.items() if lines > FUNCTION_LINES} == LONGER_FUNCTIONS
