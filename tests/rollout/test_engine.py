"""The protocol, and seeds: stable across machines and versions, and different for different samples."""

from hypothesis import given
from hypothesis import strategies as st

from opasd.config import SamplingConfig
from opasd.rollout.engine import Completion, RolloutEngine, as_engine, derive_seed

PARTS = st.lists(st.integers() | st.text(st.characters(categories=None)), max_size=4)


class OnlyGenerates:
    def generate(self, prompts, sampling, seeds):
        return [Completion((seed,), "length") for seed in seeds]


def test_an_object_that_only_generates_becomes_an_engine():
    engine = as_engine(OnlyGenerates())
    assert isinstance(engine, RolloutEngine)
    assert engine.generate([[1], [2]], SamplingConfig(), [7, 8], measured=2) == [
        Completion((7,), "length"),
        Completion((8,), "length"),
    ]
    engine.hand_over()
    engine.close()
    assert as_engine(engine) is engine


def test_known_values():
    """A change of these breaks the resumption of every run that was begun before it."""
    assert derive_seed(42, 0, "train.jsonl:1", 0) == 3_011_548_505_634_988_619
    assert derive_seed(0, "naïve 数", 7) == 6_392_487_150_097_650_956


def test_no_collisions_among_neighbours():
    seeds = {
        derive_seed(run, step, f"p{problem}", number)
        for run in range(3)
        for step in range(40)
        for problem in range(50)
        for number in range(8)
    }
    assert len(seeds) == 3 * 40 * 50 * 8
    # As spread as random ones: every one of 64 equal intervals has its share.
    counts = [0] * 64
    for seed in seeds:
        counts[seed >> 57] += 1
    assert min(counts) > 0.85 * len(seeds) / 64


def test_parts_are_kept_apart():
    ambiguous = [
        ("a", "b|c"), ("a|b", "c"), ("a\x1fb", "c"), ("a", "b\x1fc"), ("a", "b", "c"), ('a", "b', "c"), ("abc",),
        ("a", "bc", ""), ("", "a", "bc"), (1, 23), (12, 3), ("1", 23), ("1", "23"), (), ("",), (0,), (-0, 0),
    ]  # fmt: skip
    assert len({derive_seed(*parts) for parts in ambiguous}) == len(ambiguous)


@given(PARTS, PARTS)
def test_seed_of_anything(keys, others):
    seed = derive_seed(*keys)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(*keys)
    assert (seed == derive_seed(*others)) == (keys == others)
