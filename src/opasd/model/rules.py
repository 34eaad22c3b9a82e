"""Rules from outside by which a teacher follows its student.

`opasd.model.teacher` applies them. It needs peft, whose import takes seconds; a plugin that registers a rule does not.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from opasd.choices import TEACHERS
from opasd.errors import ConfigError

Rule = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], int], None]
"""(teacher's weights, student's weights, step) → changes the teacher's in place, after optimizer step `step`."""
RULES: dict[str, Rule] = {}


def register_teacher(name: str, rule: Rule) -> None:
    """Add a rule by which the teacher follows its student, for `teacher.update: NAME`.

    The teacher begins with the student's weights. It keeps its own in float32 at least; a checkpoint holds them.
    """
    if name in TEACHERS:
        raise ConfigError(f"there is already a teacher named {name!r}; choose another name")
    RULES[name] = rule
    TEACHERS.append(name)
