"""Any OpenAI-compatible server: requests, retries, rate limits, and replies that nobody vouches for."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.config import SamplingConfig, ServersConfig
from opasd.errors import ConfigError, EngineError
from opasd.rollout.openai import ChatClient, OpenAIEngine, read_answer
from opasd.rollout.vllm import http
from opasd.rollout.vllm.http import Unavailable
from tests.rollout.chat_server import ChatServer, reply

SAMPLING = SamplingConfig(temperature=0.6, top_p=0.95, top_k=20, max_new_tokens=64)


def client(server: ChatServer, pauses: list[float] | None = None, **settings) -> ChatClient:
    config = ServersConfig(**({"retries": 2, "backoff": 0.01, "probe_timeout": 5, "timeout": 5} | settings))
    return ChatClient(server.url, "m", config, 4, {"enable_thinking": False}, ([] if pauses is None else pauses).append)


def test_what_is_asked_and_answered(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with ChatServer() as server:
        answers = client(server).answer(["one", "two"], SAMPLING, [1, 2**62 + 5])
    assert [answer.text for answer in answers] == ["\\boxed{4}"] * 2
    assert {answer.tokens for answer in answers} == {7}
    assert {path for path, _ in server.requests} == {"/v1/chat/completions"}
    bodies = {body["messages"][0]["content"]: body for _, body in server.requests}
    assert (bodies["one"]["seed"], bodies["two"]["seed"]) == (1, 5)
    assert bodies["one"]["top_k"] == 20
    assert "min_p" not in bodies["one"]
    assert bodies["one"]["chat_template_kwargs"] == {"enable_thinking": False}
    assert set(server.keys) == {"Bearer secret"}


def test_failures_and_rate_limits_are_tried_again():
    pauses: list[float] = []
    script = [(429, {"error": {"message": "slow down"}}, {"Retry-After": "3"}), (503, b"busy", {})]
    with ChatServer(*script) as server:
        (answer,) = client(server, pauses).answer(["q"], SAMPLING, [1])
    assert answer.finish_reason == "stop"
    assert len(server.requests) == 3
    assert pauses[0] == 3
    assert pauses[1] < 1


def test_giving_up_and_refusals_are_one_message():
    with ChatServer(*[(500, b"no", {})] * 3) as server, pytest.raises(EngineError, match="no answer after 3 tries"):
        client(server).answer(["q"], SAMPLING, [1])
    refusal = (400, {"error": {"message": "unknown parameter top_k"}}, {})
    with (
        ChatServer(refusal) as server,
        pytest.raises(EngineError, match="unknown parameter top_k.*top_k, chat_template"),
    ):
        client(server).answer(["q"], SAMPLING, [1])
    assert len(server.requests) == 1
    with pytest.raises(EngineError, match="connection refused"):
        client(server, retries=0).answer(["q"], SAMPLING, [1])  # it is gone now


@pytest.mark.parametrize(
    "hostile",
    [
        b"", b"[]", b"not json", b'{"choices": []}', reply(reason="tool_calls"), reply(text=["x"]),
        reply(text="x" * 10_000), b'{"choices": [{"message": null, "finish_reason": "stop"}]}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_hostile_reply_is_not_an_answer(hostile):
    with ChatServer((200, hostile, {})) as server:
        (answer,) = client(server).answer(["q"], SAMPLING, [1])
    assert answer.text == "\\boxed{4}"
    assert len(server.requests) == 2


def test_no_more_is_read_than_the_limit(monkeypatch):
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1000)
    with ChatServer((200, b"x" * 5000, {})) as server:
        client(server).answer(["q"], SAMPLING, [1])
    assert len(server.requests) == 2


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_stands_in_front(name):
    whole = read_answer(reply("\\boxed{1}", **{name: "hm"}), 64)
    assert whole.text == "<think>hm</think>\\boxed{1}"
    cut = read_answer(reply("", "length", **{name: "\\boxed{2}"}), 64)
    assert cut.text == "<think>\\boxed{2}"


def test_what_a_server_withholds_is_no_answer_and_not_asked_for_again():
    assert read_answer(reply(None, "content_filter"), 64).text == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["choices", "message", "usage"]), inner)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_any_json_is_an_answer_or_refused(value, usage):
    for read in (value, {"choices": [value]}, reply() | {"usage": usage}):
        try:
            answer = read_answer(read, 64)
        except Unavailable:
            continue
        assert answer.tokens is None or 0 <= answer.tokens <= 128


def test_it_cannot_train():
    with pytest.raises(ConfigError, match="without token ids"):
        OpenAIEngine.for_training()


def test_an_interruption_ends_the_calls_to_a_silent_server_for_good(monkeypatch):
    """Another thread's error or Ctrl-C: what is under way is given up and not tried again."""
    asked, given_up = threading.Event(), threading.Event()
    late: list[bool] = []

    def silent(self, path, body=None, *, timeout=None):
        if body["messages"][0]["content"] == "wrong":
            asked.wait(30)
            raise http.Refused(400, "no such model")
        late.append(given_up.is_set())
        asked.set()
        given_up.wait(30)
        raise Unavailable("the connection was cut")

    monkeypatch.setattr(http.Client, "call", silent)
    monkeypatch.setattr(http.Client, "abort", lambda self: given_up.set())
    chat = ChatClient("http://localhost:1", "m", ServersConfig(retries=5, backoff=0.01), 2)
    with pytest.raises(EngineError, match="no such model"):
        chat.answer(["wrong", "silent"], SAMPLING, [1, 2])
    assert late == [False]
