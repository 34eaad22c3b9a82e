"""Two real vLLM servers: the same tokens as transformers, every update served, and one of them killed in between."""

import threading
import time

import pytest

from opasd.config import DriftConfig, SamplingConfig
from opasd.errors import EngineError
from opasd.rollout.drift import DriftCheck
from opasd.rollout.factory import make_engine, serve_base
from tests.vllm.setting import (
    BLOCK,
    FLOAT32,
    GREEDY,
    LONGEST,
    Server,
    change,
    config,
    greedy,
    prompts,
    student,
    tokenizer,
)

SAMPLED = SamplingConfig(temperature=0.9, top_k=12, top_p=0.9, max_new_tokens=40)
QUICK = {"retries": 4, "backoff": 0.2, "timeout": 120}


@pytest.fixture(scope="module")
def servers():
    started = [Server(), Server()]
    try:
        yield [server.wait() for server in started]
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="module")
def model():
    return student()


@pytest.fixture(scope="module")
def engine(servers, model):
    settings = config("vllm_server", servers={"urls": [server.url for server in servers], **QUICK})
    made = make_engine(settings, model, tokenizer(), longest=LONGEST)
    made.stop = frozenset()
    yield made
    made.close()


def ids(completions):
    return [completion.ids for completion in completions]


def rows(model, asked):
    return [greedy(model, prompt) for prompt in asked]


def test_greedy_tokens_are_those_of_transformers(engine, model, servers):
    asked = prompts(8) + prompts(4, 1, lengths=(1, 20))
    found = engine.generate(asked, GREEDY, range(12), measured=12)
    assert ids(found) == rows(model, asked)
    drift = DriftCheck(model, DriftConfig(), half=False)(asked, found)
    assert drift is not None
    assert drift.largest < 1e-4
    assert all(server.served() >= 5 for server in servers)


def test_every_update_is_served(engine, model):
    """The same prompts each time: neither an old adapter nor what is cached of it may answer, at either server."""
    asked, seen = prompts(8), set()
    assert min(map(len, asked)) > BLOCK
    for _ in range(3):
        change(model, 0.02)
        found = ids(engine.generate(asked, GREEDY, range(8)))
        assert found == rows(model, asked)
        seen.add(tuple(found))
    assert len(seen) == 3
    assert len([path for path in engine.student.folder.iterdir() if path.name != ".lock"]) == 1


def test_an_adapter_replaced_under_its_name_would_not_be_served(engine, model):
    """Why names are new: the server keeps what it read, and the check finds it out."""
    asked, hand_over = prompts(4), engine.hand_over
    engine.generate(asked, SAMPLED, range(4))
    change(model, 0.02)
    engine.hand_over = lambda: None
    try:
        with pytest.raises(EngineError, match="does not serve the student's weights"):
            DriftCheck(model, DriftConfig(), half=False)(asked, engine.generate(asked, SAMPLED, range(4), measured=4))
    finally:
        engine.hand_over = hand_over


def test_the_base_and_adapters_in_turn(servers, tmp_path):
    students = {name: student(seed) for seed, name in enumerate("ab")}
    for name, adapted in students.items():
        adapted.save_pretrained(str(tmp_path / name))
    settings = config("vllm_server", servers={"urls": [server.url for server in servers], **QUICK})
    made = serve_base(settings, FLOAT32, tokenizer(), longest=LONGEST)
    made.stop = frozenset()
    asked = prompts(4)
    for name in "ab":
        made.use_adapter(tmp_path / name)
        assert ids(made.generate(asked, GREEDY, range(4))) == rows(students[name], asked)
        made.use_adapter(None)
        with students[name].disable_adapter():
            assert ids(made.generate(asked, GREEDY, range(4))) == rows(students[name], asked)
    made.close()


def test_seeds_decide_whichever_server_answers(engine):
    asked, seeds = prompts(12, 2), [2**61 + 17 * place for place in range(12)]
    found = ids(engine.generate(asked, SAMPLED, seeds))
    assert ids(engine.generate(asked[::-1], SAMPLED, seeds[::-1])) == found[::-1]
    assert ids(engine.generate(asked, SAMPLED, [seed + 1 for seed in seeds])) != found


def test_a_server_killed_in_the_middle_of_a_batch(engine, model, servers):
    """Nothing is lost; started again, it is given the adapter and takes its share."""
    asked = prompts(96, 3, lengths=(20, 40))
    long = SamplingConfig(temperature=0.9, top_k=12, top_p=0.9, max_new_tokens=100)
    whole = ids(engine.generate(asked, long, range(96)))
    before = servers[1].served()
    killer = threading.Timer(1.0, servers[0].kill)
    killer.start()
    began = time.monotonic()
    assert ids(engine.generate(asked, long, range(96))) == whole
    assert time.monotonic() - began > 1.0, "over before the server was killed"
    killer.join()
    assert servers[0].process.returncode == -9
    assert servers[1].served() - before > 48, "the other one took over"

    change(model, 0.02)  # an update that the dead server does not hear of
    assert ids(engine.generate(prompts(4), GREEDY, range(4))) == rows(model, prompts(4))
    again = Server(servers[0].port)
    try:
        again.wait()
        for server in engine.servers:
            server.ask_at = 0.0
        expected = rows(model, prompts(16))
        for _ in range(5):
            assert ids(engine.generate(prompts(16), GREEDY, range(16))) == expected
        assert again.served() > 10
    finally:
        again.stop()
    servers[1].stop()
    with pytest.raises(EngineError, match="no vLLM server answers, after 5 tries each.*connection refused"):
        engine.generate(prompts(4), GREEDY, range(4))
