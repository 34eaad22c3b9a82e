"""The options of `opasd evaluate` as flags, and back."""

from hypothesis import given
from hypothesis import strategies as st

from opasd.recipes.evaluate import parse_template_option, template_option

AMBIGUOUS = st.sampled_from(["true", "7", "-7", '"7"', '"', "007"])


@given(st.one_of(st.text(max_size=9), st.integers(-99, 99), st.booleans(), AMBIGUOUS))
def test_a_template_option_keeps_its_value_and_type(value: str | int | bool) -> None:
    name, parsed = parse_template_option(template_option("s", value))
    assert (name, type(parsed), parsed) == ("s", type(value), value)
