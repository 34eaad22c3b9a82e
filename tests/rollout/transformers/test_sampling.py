"""Sampling: the distribution is transformers' own, and drawing from it is exact."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from opasd.config import SamplingConfig
from opasd.rollout.transformers.sampling import kept_tokens, sample

NAN, INF = float("nan"), float("inf")
SETTINGS = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([0.2, 0.6, 1.0, 1.1, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 20, 1000]),
    top_p=st.sampled_from([0.01, 0.3, 0.5, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)


def plain(**settings) -> SamplingConfig:
    return SamplingConfig(**({"temperature": 1.0, "top_k": 0, "top_p": 1.0} | settings))


def their_distribution(logits_BV, sampling):
    """In the order in which `generate` puts them."""
    warpers = [logits_process.TemperatureLogitsWarper(sampling.temperature)]
    warpers += [logits_process.TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    warpers += [logits_process.TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    warpers += [logits_process.MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    for warper in warpers:
        logits_BV = warper(None, logits_BV)
    return logits_BV.softmax(-1)


def our_distribution(logits_BV, sampling):
    probability_BK, token_BK = kept_tokens(logits_BV, sampling)
    kept_BV = torch.zeros(logits_BV.shape).scatter_(-1, token_BK, probability_BK)
    return kept_BV / kept_BV.sum(-1, keepdim=True)


def near_a_threshold(logits_BV, sampling) -> bool:
    """Whether rounding could decide which side of top-p's or min-p's threshold a token is on."""
    logits_BV = logits_BV.double() / sampling.temperature
    count = min(sampling.top_k or logits_BV.shape[-1], logits_BV.shape[-1])
    probability_BK = logits_BV.topk(count).values.softmax(-1)
    before_BK = probability_BK.cumsum(-1) - probability_BK
    share_BK = probability_BK / probability_BK[:, :1]
    near_p = (before_BK[:, 1:] - sampling.top_p).abs() < 1e-5
    near_min = (share_BK[:, 1:] - sampling.min_p).abs() < 1e-5 * sampling.min_p
    return bool(near_p.any() or near_min.any())


@settings(max_examples=300)
@given(SETTINGS, st.integers(1, 60), st.sampled_from([0.1, 1.0, 5.0]), st.integers(0, 2**32))
def test_the_distribution_is_transformers(sampling, vocabulary, spread, seed):
    logits_BV = spread * torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(seed))
    assume(not near_a_threshold(logits_BV, sampling))
    torch.testing.assert_close(
        our_distribution(logits_BV, sampling), their_distribution(logits_BV, sampling), atol=1e-6, rtol=1e-4
    )


def test_top_p_keeps_the_token_that_crosses_the_threshold():
    logits_BV = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for top_p, count in ((0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3)):
        assert (our_distribution(logits_BV, plain(top_p=top_p)) > 0).sum() == count


def test_min_p_is_relative_to_the_likeliest_token():
    logits_BV = torch.tensor([[0.5, 0.3, 0.14, 0.06]]).log()
    assert (our_distribution(logits_BV, plain(min_p=0.25)) > 0).tolist() == [[True, True, True, False]]
    # Top-k and top-p renormalise and so change no ratio.
    assert (our_distribution(logits_BV, plain(min_p=0.25, top_k=3)) > 0).sum() == 3


@pytest.mark.parametrize("sampling", [plain(), plain(temperature=1.4, top_k=5, top_p=0.9), plain(min_p=0.2)], ids=str)
def test_draws_follow_the_distribution(sampling):
    """Chi-square against the distribution; the quantile is that of 1 in 1,000."""
    draws, generator = 40_000, torch.Generator().manual_seed(1)
    logits_BV = 1.5 * torch.randn(1, 12, generator=generator)
    tokens = sample(logits_BV.expand(draws, -1), torch.rand(draws, generator=generator), sampling)
    expected_V = draws * our_distribution(logits_BV, sampling)[0]
    counts_V = tokens.bincount(minlength=12)
    possible_V = expected_V > 0
    assert counts_V[~possible_V].sum() == 0
    freedom = int(possible_V.sum()) - 1
    statistic = float(((counts_V - expected_V)[possible_V].square() / expected_V[possible_V]).sum())
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty
    assert statistic < quantile


def test_temperature_zero_is_argmax_whatever_the_rest():
    logits_BV = torch.randn(8, 50)
    for uniform in (0.0, 0.5, 1 - 2**-24):
        tokens = sample(logits_BV, torch.full((8,), uniform), SamplingConfig(temperature=0, top_k=3, min_p=0.5))
        assert tokens.tolist() == logits_BV.argmax(-1).tolist()


@given(SETTINGS, st.integers(1, 40), st.integers(0, 2**32))
def test_ends_of_the_unit_interval(sampling, vocabulary, seed):
    """0 draws the likeliest token; the largest number below 1 the unlikeliest that is left, and nothing beyond it."""
    logits_BV = 30 * torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(seed))
    assert sample(logits_BV, torch.zeros(3), sampling).tolist() == logits_BV.argmax(-1).tolist()
    probability_BK, token_BK = kept_tokens(logits_BV, sampling)
    last_B1 = sample(logits_BV, torch.full((3,), 1 - 2**-24), sampling)[:, None]
    assert (probability_BK[token_BK == last_B1] > 0).all()


def test_the_whole_interval_is_used():
    """Tokens get intervals of the unit interval in the order of their probability."""
    logits_BV = torch.tensor([[0.2, 0.5, 0.3]]).log()
    uniform = torch.tensor([0.0, 0.499, 0.501, 0.799, 0.801, 1 - 2**-24])
    assert sample(logits_BV.expand(6, -1), uniform, plain()).tolist() == [1, 1, 2, 2, 0, 0]


def test_minus_infinity_is_never_drawn():
    logits_BV = torch.full((64, 30), -INF)
    logits_BV[:, 3], logits_BV[:, 17] = 0.0, 1.0
    uniform = torch.linspace(0, 1 - 2**-24, 64)
    for sampling in (plain(), plain(top_k=20, top_p=0.999), plain(min_p=0.01)):
        assert set(sample(logits_BV, uniform, sampling).tolist()) == {3, 17}
    logits_BV[:, 3] = -INF
    assert set(sample(logits_BV, uniform, plain()).tolist()) == {17}


def test_low_precision_is_sampled_in_float32():
    logits_BV = torch.randn(5, 40).bfloat16()
    uniform = torch.rand(5)
    assert sample(logits_BV, uniform, plain()).tolist() == sample(logits_BV.float(), uniform, plain()).tolist()


@pytest.mark.parametrize("row", [[NAN] * 4, [0.0, NAN, 1.0, 2.0], [0.0, INF, 1.0, INF], [-INF] * 4], ids=str)
@pytest.mark.parametrize(
    "sampling", [plain(), SamplingConfig(), SamplingConfig(min_p=0.1), plain(temperature=0)], ids=str
)
def test_a_row_without_a_distribution_breaks_no_other(row, sampling):
    """An id outside the vocabulary would kill a CUDA context, and a neighbour must not notice."""
    good_BV = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    uniform = torch.tensor([0.7, 0.7])
    tokens = sample(torch.cat([torch.tensor([row]), good_BV]), uniform, sampling)
    assert 0 <= tokens[0] < 4
    assert tokens[1] == sample(good_BV, uniform[:1], sampling)[0]


@given(st.integers(0, 2**32), SETTINGS)
def test_a_row_does_not_depend_on_the_batch(seed, sampling):
    generator = torch.Generator().manual_seed(seed)
    logits_BV, uniform_B = torch.randn(6, 33, generator=generator), torch.rand(6, generator=generator)
    together = sample(logits_BV, uniform_B, sampling)
    alone = [sample(logits_BV[i : i + 1], uniform_B[i : i + 1], sampling)[0] for i in range(6)]
    assert together.tolist() == [int(token) for token in alone]
