"""Messages and records show no secret of an address, however it is written."""

import pytest

from opasd.errors import without_secrets
from tests.commands import opasd

ADDRESSES = [
    "http://me:hidden@host:1/v1", "HTTP://hidden@host:1", "me:hidden@host:1", "http:/me:hidden@host:1",
    "http://me:x/hidden@host:1", "http:\\\\me:hidden@host:1",
    "host:1?api_key=hidden", "http://host/v1?x=1&access_token=hidden#m", "http://host:1/v1;key=hidden",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_secret_of_an_address_is_masked(address):
    shown = without_secrets(f"error: {address!r}; give another")
    assert "hidden" not in shown
    assert "***" in shown
    assert "host" in shown


@pytest.mark.parametrize(
    "text",
    ["http://host:8000/v1", "got 'a: b'", "me@host", "12:30:00 @ 5", "a?b=c", "token=5", "f(x):=x@y", "a://b/c@d"],
)
def test_other_text_stays(text):
    assert without_secrets(text) == text


SERVED = {
    "validate": ("validate", "lab", "--engine", "vllm_server", "--rollout.servers.urls"),
    "validate as JSON": ("validate", "lab", "--json", "--engine", "vllm_server", "--rollout.servers.urls"),
    "sweep": ("sweep", "lab", "--print-commands", "--rollout.servers.urls"),
    "evaluate": ("evaluate", "lab", "--engine", "vllm_server", "--server"),
    "judge": ("evaluate", "lab", "--judge"),
    "sweep's servers": ("sweep", "lab", "--slurm", "--dry-run", "--evaluate.server"),
    "merge": ("merge", "--output", "out"),
    "report": ("report", "--output", "out"),
    "model": ("train", "lab", "--model"),
    "data": ("train", "lab", "--data"),
}


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("words", SERVED.values(), ids=SERVED)
def test_no_command_shows_or_keeps_it(tmp_path, words, address):
    done = opasd(tmp_path, *words, address)
    assert done.returncode == 2, done.stdout
    assert "hidden" not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("validate", "lab"), ("validate", "lab", "--json"), ("sweep", "lab", "--print-commands")]
)
def test_a_token_is_refused_and_not_shown(tmp_path, words):
    done = opasd(tmp_path, *words, "--train.extra.hub_token", "hidden")
    assert done.returncode == 2
    assert "hidden" not in done.stdout + done.stderr
