"""The client of vLLM servers against a real HTTP server that can be killed and made to misbehave."""

import signal
import threading
from contextlib import contextmanager, suppress
from http.client import HTTPConnection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedConfig

from opasd.config import RolloutConfig, SamplingConfig, ServersConfig
from opasd.errors import ConfigError, EngineError
from opasd.rollout.vllm import dispatch, http
from opasd.rollout.vllm import server as server_module
from opasd.rollout.vllm.http import Client, Unavailable, shown
from opasd.rollout.vllm.server import ServerEngine, read_completion, read_models
from opasd.rollout.vllm.serving import ServedBase
from tests.processes import wait_until
from tests.rollout.vllm.fake_server import Process, tokens

SAMPLING = SamplingConfig(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, max_new_tokens=20)
FAST = {"retries": 3, "backoff": 0.05, "max_backoff": 0.2, "timeout": 600.0, "probe_timeout": 600.0}
PROMPTS = [[index, index + 1, 5] for index in range(40)]
SEEDS = [2**62 + index for index in range(40)]


@pytest.fixture
def servers():
    started = [Process(), Process()]
    yield started
    for server in started:
        server.kill()


def make_engine(servers, *, stop=(), longest=4096, max_batch=16, configured=True, **settings):
    addresses = {"urls": [server.url for server in servers], **FAST, **settings}
    config = RolloutConfig.model_validate({"engine": "vllm_server", "servers": addresses, "max_batch": max_batch})
    base = ServedBase("base", PreTrainedConfig(vocab_size=200), frozenset(stop), {})
    return ServerEngine(config, base, longest, configured=configured)


def expected(adapter="", limit=20):
    return [tuple(tokens(prompt, seed, limit, adapter)) for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]


def ids(completions):
    return [completion.ids for completion in completions]


@contextmanager
def released(*servers, once):
    """While entered, let go of what the servers hold back as soon as something holds."""

    def release():
        wait_until(once)
        for server in servers:
            server.set(held=False)

    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    yield
    thread.join()


def test_completions_come_in_order_and_both_servers_work(servers):
    for server in servers:
        server.hold()
    engine = make_engine(servers, stop=[7])
    with released(*servers, once=lambda: all(server.received(16) for server in servers)):
        completions = engine.generate(PROMPTS, SAMPLING, SEEDS)
    assert ids(completions) == expected()
    assert [completion.finish_reason for completion in completions] == [
        "stop" if row[-1] == 7 else "length" for row in expected()
    ]
    assert sum(server.count("/v1/completions") for server in servers) == 40
    assert engine.generate([], SAMPLING, []) == []


def test_no_server_gets_more_than_its_share_at_a_time(servers):
    make_engine(servers[:1], max_batch=3).generate(PROMPTS, SAMPLING, SEEDS)
    assert servers[0].log()["most_busy"] <= 3


def test_every_setting_is_sent(servers):
    """What a request leaves out, a server takes from the model's generation_config.json."""
    engine = make_engine(servers, stop=[9, 3])
    request = engine.request([1, 2], SAMPLING, 11)
    assert request == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_tokens": 20, "seed": 11,
        "stop_token_ids": [3, 9], "ignore_eos": True,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip


def test_logprobs_only_of_the_measured(servers):
    completions = make_engine(servers).generate(PROMPTS, SAMPLING, SEEDS, measured=2)
    assert [completion.logprobs is not None for completion in completions] == [True] * 2 + [False] * 38
    assert completions[0].logprobs == (-0.5,) * len(completions[0].ids)


def test_a_server_killed_in_the_middle_of_a_batch_loses_nothing(servers):
    for server in servers:
        server.hold()
    engine = make_engine(servers, max_batch=8)

    def killed():
        if all(server.received(8) for server in servers):
            servers[0].kill()
        return servers[0].process.returncode

    with released(servers[1], once=killed):
        assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected()
    assert servers[0].process.returncode == -9
    assert servers[1].count("/v1/completions") == 40


def test_a_server_that_comes_back_works_again(servers):
    first, second = servers
    engine = make_engine(servers, max_batch=4)
    engine.generate(PROMPTS, SAMPLING, SEEDS)
    first.kill()
    second.hold()
    before = second.count("/v1/completions")

    def back():
        if len(servers) == 2 and second.received(before + 4):  # and so the batch is under way
            servers.append(Process(first.port))
        return len(servers) == 3 and servers[2].received(4)

    with released(second, once=back):
        assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected()


FAULTS = {
    "server error": 500,
    "overload": 503,
    "too many": 429,
    "hanging": "hang",
    "cut in the body": "cut",
    "no answer at all": "slam",
    "not JSON": "<html>no</html>",
    "empty": "",
    "null": "null",
    "no choices": {"model": "base", "choices": []},
    "broken off": {"model": "base", "choices": [{"token_ids": [1], "finish_reason": "abort"}]},
    "no tokens": {"model": "base", "choices": [{"token_ids": [], "finish_reason": "stop"}]},
    "too many tokens": {"model": "base", "choices": [{"token_ids": [1] * 21, "finish_reason": "stop"}]},
    "text for tokens": {"model": "base", "choices": [{"token_ids": ["a"], "finish_reason": "stop"}]},
    "no reason": {"model": "base", "choices": [{"token_ids": [1]}]},
    "nested beyond measure": "[" * 200_000,
    "nested beyond what can be written": '{"choices": ' + "[" * 900 + "]" * 900 + "}",
    "a token beyond the vocabulary": {"model": "base", "choices": [{"token_ids": [200], "finish_reason": "stop"}]},
    "a token beyond all numbers": {"model": "base", "choices": [{"token_ids": [10**12], "finish_reason": "stop"}]},
    "a length beyond all memory": "claim",
    "an answer without an end": "flood",
    "drops for ever": "drip",
    "headers for ever": "drip of headers",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_one_server_spoils_is_asked_again(servers, fault, monkeypatch):
    servers[0].set(faults=[FAULTS[fault]] * 3)
    servers[1].hold()
    engine = make_engine(servers, timeout=5 if fault == "hanging" else 1 if "for ever" in fault else 600)
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 2**22)
    with released(servers[1], once=lambda: servers[0].received(1)):
        assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected()
    assert sum(server.count("/v1/completions") for server in servers) >= 41


@pytest.mark.parametrize("fault", ["[" * 200_000, "claim", '{"data": [{"id": ' + "[" * 900 + "]" * 900 + "}]}"])
def test_a_server_that_answers_nonsense_when_asked_is_left_alone(servers, fault):
    servers[0].set(model_faults=[fault], lasting=True)
    assert ids(make_engine(servers).generate(PROMPTS, SAMPLING, SEEDS)) == expected()
    assert servers[0].count("/v1/completions") == 0


def test_a_servers_words_cannot_steer_a_terminal(servers, caplog):
    """Colours, bells, new lines, text that runs backwards."""
    words = "\x1b[31mred\x07\r\nnext \u202eltr"
    servers[0].set(faults=[{"status": 500, "words": words}, {"status": 400, "words": words}])
    with pytest.raises(EngineError, match=r"HTTP 400: .\[31mred. next .ltr") as caught:
        make_engine(servers[:1]).generate(PROMPTS[:1], SAMPLING, SEEDS[:1])
    logged = [record.getMessage() for record in caplog.records]
    assert any("HTTP 500" in line for line in logged)
    assert all(line.isprintable() for line in (str(caught.value), *logged))


@given(st.text())
def test_what_is_shown_of_a_server_is_one_short_line(text):
    assert shown(text).isprintable()
    assert len(shown(text)) <= 500
    if text.isprintable() and "  " not in text.strip() and len(text) < 500:
        assert shown(text) == text.strip()


def test_a_batch_that_waits_can_be_interrupted(servers):
    """A signal's handler raises in the thread that waits; nobody waits for the silent server after that."""

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    servers[0].set(faults=["hang"] * 40)

    def interrupt():
        wait_until(lambda: servers[0].log()["hanging"] >= 16)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt, daemon=True)
    try:
        thread.start()
        with pytest.raises(Stop):
            make_engine(servers[:1]).generate(PROMPTS, SAMPLING, SEEDS)
        thread.join()
        wait_until(lambda: not any(other.name.startswith("ThreadPoolExecutor") for other in threading.enumerate()))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_call_that_connects_while_all_are_ended_ends_too(servers, monkeypatch):
    client, connect = Client(servers[0].url, 600.0), HTTPConnection.connect
    monkeypatch.setattr(HTTPConnection, "connect", lambda self: (connect(self), client.abort()))
    with pytest.raises(Unavailable, match="the call was ended"):
        client.call("/v1/models")
    assert servers[0].count("/v1/models") == 0


def test_a_server_that_is_silent_at_the_end_holds_nobody_up(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "CLOSING", 0.2)
    engine = make_engine(servers)
    engine.use_adapter(adapter(tmp_path / "a"))
    engine.generate(PROMPTS, SAMPLING, SEEDS)
    servers[0].set(stuck=True)
    engine.close()
    assert servers[1].log()["adapters"] == {}
    wait_until(lambda: not any(other.name.startswith("ThreadPoolExecutor") for other in threading.enumerate()))


@pytest.mark.parametrize(("max_batch", "shares"), [(64, [22, 21, 21]), (2, [1, 1, 1]), (3, [1, 1, 1])])
def test_processes_that_train_together_share_what_a_server_takes(max_batch, shares, monkeypatch):
    engine = make_engine([], urls=["http://a"], max_batch=max_batch)
    monkeypatch.setattr(server_module, "processes", lambda: 3)
    found = []
    for rank in range(3):
        monkeypatch.setattr(server_module, "rank", lambda rank=rank: rank)
        found.append(engine.limit)
    assert found == shares


def test_an_error_that_is_nested_beyond_measure_is_one(servers):
    servers[0].set(faults=["refuse"] * 3)
    with pytest.raises(EngineError, match=r"refuses a request \(HTTP 400: \[\[\["):
        make_engine(servers[:1]).generate(PROMPTS[:1], SAMPLING, SEEDS[:1])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400, True])
def test_log_probabilities_must_be_numbers(number):
    choice = {"token_ids": [1], "finish_reason": "stop", "logprobs": {"token_logprobs": [number]}}
    with pytest.raises(Unavailable):
        read_completion({"model": "m", "choices": [choice]}, "m", {"max_tokens": 4, "logprobs": 0}, "url", 9)


def test_a_server_that_hangs_when_asked_holds_nobody_up(servers, monkeypatch):
    servers[0].set(model_faults=["hang"], lasting=True)
    monkeypatch.setattr(dispatch, "PATIENCE", 0.1)
    assert ids(make_engine(servers).generate(PROMPTS, SAMPLING, SEEDS)) == expected()
    assert servers[0].log()["hanging"] == 1


def test_who_is_ready_first_leaves_the_others_their_share(servers, monkeypatch):
    """The first one could take the whole batch before the second has its adapter."""
    prepare = ServerEngine.prepare

    def late(engine, server):
        if server.url == servers[1].url:
            wait_until(lambda: servers[0].received(20))
        return prepare(engine, server)

    monkeypatch.setattr(ServerEngine, "prepare", late)
    monkeypatch.setattr(dispatch, "PATIENCE", 600.0)
    for server in servers:
        server.hold()
    with released(*servers, once=lambda: servers[1].received(20)):
        assert ids(make_engine(servers, max_batch=64).generate(PROMPTS, SAMPLING, SEEDS)) == expected()
    assert [server.count("/v1/completions") for server in servers] == [20, 20]


def test_all_dead_is_one_clear_error_after_the_retries(servers, caplog):
    for server in servers:
        server.kill()
    with pytest.raises(EngineError, match="no vLLM server answers, after 4 tries each") as caught:
        make_engine(servers).generate(PROMPTS, SAMPLING, SEEDS)
    failed = [record.args[0] for record in caplog.records if "asked again in" in record.message]
    assert all(failed.count(server.url) >= 4 for server in servers), "one is asked on until all have failed so often"
    assert all(f"{server.url}: connection refused" in str(caught.value) for server in servers)
    assert str(caught.value).endswith("Start them, or correct rollout.servers.urls")


def test_without_a_configuration_no_setting_of_it_is_named(servers, tmp_path):
    first = servers[0]
    engine = make_engine([first], configured=False, retries=0)
    messages = []
    for state in ({"longest": 9}, {"longest": 4096, "faults": [500]}, {"runtime_lora": False}):
        first.set(**state)
        engine.use_adapter(adapter(tmp_path / "a") if "runtime_lora" in state else None)
        with pytest.raises(EngineError) as caught:
            engine.generate(PROMPTS[:1], SAMPLING, SEEDS[:1])
        messages.append(str(caught.value))
    first.kill()
    with pytest.raises(EngineError, match="Start them, or correct --server") as caught:
        engine.generate(PROMPTS[:1], SAMPLING, SEEDS[:1])
    assert not [text for text in (*messages, str(caught.value)) if "rollout." in text]


def test_pauses_double(servers, caplog):
    servers[0].set(model_faults=[500] * 4)
    engine = make_engine(servers[:1], retries=4, backoff=0.1, max_backoff=0.4)
    assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected()
    pauses = [record.args[2] for record in caplog.records if "asked again in" in record.message]
    for pause, longest in zip(pauses, (0.1, 0.2, 0.4, 0.4), strict=True):
        assert 0.75 * longest <= pause <= longest  # not all processes at once


def test_a_request_that_never_works_ends_the_batch(servers):
    for server in servers:
        server.set(faults=[500] * 100)
    with pytest.raises(EngineError, match="a request failed 4 times, the last time at .*told to say 500"):
        make_engine(servers).generate(PROMPTS[:1], SAMPLING, SEEDS[:1])
    assert sum(server.count("/v1/completions") for server in servers) == 4


def test_a_refused_request_is_not_repeated(servers):
    servers[0].set(faults=[400])
    with pytest.raises(EngineError, match="refuses a request .*told to say 400"):
        make_engine(servers[:1]).generate(PROMPTS[:1], SAMPLING, SEEDS[:1])
    assert servers[0].count("/v1/completions") == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"model": "base", "choices": [{"text": "a", "finish_reason": "stop"}]}, "returns no token ids"),
        ({"model": "other", "choices": [{"token_ids": [1], "finish_reason": "stop"}]}, "answered with 'other'"),
    ],
)
def test_a_server_that_cannot_do_it_is_named(servers, answer, message):
    servers[0].set(faults=[answer])
    with pytest.raises(EngineError, match=message):
        make_engine(servers[:1]).generate(PROMPTS[:1], SAMPLING, SEEDS[:1])


def test_after_an_error_the_next_batch_tries_again(servers):
    servers[0].set(model_faults=[500] * 4)
    engine = make_engine(servers[:1])
    with pytest.raises(EngineError, match="no vLLM server answers"):
        engine.generate(PROMPTS, SAMPLING, SEEDS)
    assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected()


def test_sequences_must_fit(servers):
    servers[0].set(longest=100)
    with pytest.raises(EngineError, match="takes sequences of 100 tokens.*--max-model-len 128"):
        make_engine(servers, longest=128).generate(PROMPTS, SAMPLING, SEEDS)
    engine = make_engine(servers, longest=8)
    assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected(limit=5)
    with pytest.raises(ConfigError, match="a prompt of 8 tokens leaves no room"):
        engine.generate([[1] * 8], SAMPLING, [0])


def test_a_temperature_that_vllm_would_raise_is_refused(servers):
    with pytest.raises(ConfigError, match="use 0 for the likeliest"):
        make_engine(servers).generate(PROMPTS, SamplingConfig(temperature=0.001), SEEDS)


def test_the_key_is_sent(servers, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sesame\n")  # as a file gives it
    make_engine(servers[:1]).generate(PROMPTS[:1], SAMPLING, SEEDS[:1])
    assert {key for _, key in servers[0].log()["log"]} == {"Bearer sesame"}


@pytest.mark.parametrize("key", ["sesame\x01", "sés", "open\nsesame"])
def test_a_key_that_cannot_be_sent_is_not_shown(servers, monkeypatch, key):
    monkeypatch.setenv("VLLM_API_KEY", key)
    with pytest.raises(ConfigError, match="^VLLM_API_KEY holds a character that no key has; set it again$"):
        make_engine(servers).generate(PROMPTS[:1], SAMPLING, SEEDS[:1])


# ---- adapters -------------------------------------------------------------------------------------------------------


def adapter(folder):
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def test_adapters_are_swapped_under_new_names(servers, tmp_path):
    engine = make_engine(servers)
    paths = [adapter(tmp_path / name) for name in "ab"]
    names = set()
    for path in [*paths, paths[0]]:
        engine.use_adapter(path)
        assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected(str(path))
        for server in servers:
            [(name, where)] = server.log()["adapters"].items()
            assert where == str(path)
        names.add(name)
    assert len(names) == 3
    engine.use_adapter(None)
    assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected()
    engine.close()
    assert [server.log()["adapters"] for server in servers] == [{}, {}]


def test_a_restarted_server_gets_the_adapter_again(servers, tmp_path):
    engine = make_engine(servers, max_batch=4)
    path = adapter(tmp_path / "a")
    engine.use_adapter(path)
    engine.generate(PROMPTS, SAMPLING, SEEDS)
    servers[0].kill()
    servers.append(Process(servers[0].port))
    servers[1].hold()
    with released(servers[1], once=lambda: servers[2].log()["adapters"]):
        assert ids(engine.generate(PROMPTS, SAMPLING, SEEDS)) == expected(str(path))
    assert list(servers[-1].log()["adapters"].values()) == [str(path)]


def test_an_adapter_that_another_process_has_loaded_is_fine(servers, tmp_path, monkeypatch):
    """Both see a list without it and ask for it; the second learns that it is there already."""
    path = adapter(tmp_path / "a")
    engines = [make_engine(servers[:1]), make_engine(servers[:1])]
    monkeypatch.setattr("opasd.rollout.vllm.server.secrets.token_hex", lambda _: "same")
    for engine in engines:
        engine.use_adapter(path)
    engines[0].generate(PROMPTS, SAMPLING, SEEDS)
    servers[0].set(model_faults=[{"data": [{"id": "base", "parent": None}]}])
    assert ids(engines[1].generate(PROMPTS, SAMPLING, SEEDS)) == expected(str(path))


@pytest.mark.parametrize("lacking", ["the file", "the route"])
def test_a_server_without_adapters_is_named(servers, tmp_path, lacking):
    servers[0].set(runtime_lora=lacking != "the route")
    engine = make_engine(servers[:1])
    engine.use_adapter(tmp_path / "nowhere" if lacking == "the file" else adapter(tmp_path / "a"))
    with pytest.raises(EngineError, match="does not take the adapter.*--enable-lora.*adapter_dir"):
        engine.generate(PROMPTS, SAMPLING, SEEDS)


# ---- hostile answers ------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "data", "id", "parent", "token_ids", "finish_reason", "logprobs", "model"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_answer_breaks_the_reader(answer):
    with suppress(Unavailable, EngineError):
        token_ids, _ = read_completion(answer, "m", {"max_tokens": 4, "logprobs": 0}, "url", 9)
        assert token_ids
        assert all(isinstance(token, int) and 0 <= token < 9 for token in token_ids)
    with suppress(Unavailable):
        assert isinstance(read_models(answer)[0], str)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", ""])
def test_an_address_must_be_one(url):
    with pytest.raises(ValueError, match="give addresses such as http"):
        ServersConfig(urls=(url,))
    with pytest.raises(ValueError, match="twice"):
        ServersConfig(urls=("http://a", "http://a/"))


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hidden@a:8000",
        "https://:hidden@a",
        "http://a:8000/v1?api_key=hidden",
        "http://a/#hidden",
        "http://a/v1;key=hidden",
        "http://me%3Ahidden%40a:1",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(url):
    with pytest.raises(ValueError, match="VLLM_API_KEY") as caught:
        ServersConfig(urls=(url,))
    assert "hidden" not in caught.value.errors(include_url=False, include_input=False)[0]["msg"]
