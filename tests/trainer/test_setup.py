"""Processes that train together read a source once and share the making of contexts; they get what one process gets."""

import json
from pathlib import Path

import pytest

from opasd.config import DataConfig, OPASDConfig
from opasd.data import sets
from opasd.errors import PromptError
from opasd.prompts.pairs import PromptBuilder
from opasd.together import from_first, processes, rank
from opasd.trainer import setup
from tests import nursery
from tests.training import PROBLEMS, TOKENIZER

CONFIG = OPASDConfig.model_validate({"prompts": {"max_student_tokens": 60, "imitation": "refuse"}})
LONG = "word " * 80
SCRIPT = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
from tests.trainer.test_setup import counted
dist.init_process_group("gloo")
Path(sys.argv[2], f"{dist.get_rank()}.json").write_text(json.dumps(counted(Path(sys.argv[1]))))
dist.barrier()
os._exit(0)
"""


def prepared(path, on_bad_row="skip"):
    builder = PromptBuilder(TOKENIZER, CONFIG.prompts)
    data = from_first(lambda: sets.load_set(DataConfig(source=str(path), on_bad_row=on_bad_row), "train"))
    return setup.prepare_data(data, {"held": str(path.with_name("held.jsonl"))}, builder, CONFIG, on_bad_row)


def counted(path):
    """What this process has read and made itself, what it got, and the message about a bad row."""
    read, made = [], []
    load, pair = sets.load_problems, PromptBuilder.pair
    sets.load_problems = lambda **settings: (read.append(1), load(**settings))[1]
    PromptBuilder.pair = lambda self, problem, *args: (made.append(problem.id), pair(self, problem, *args))[1]
    try:
        data = prepared(path)
        with pytest.raises(PromptError) as refused:
            prepared(path, "stop")
    finally:
        sets.load_problems, PromptBuilder.pair = load, pair
    got = {
        "pairs": [[pair.problem.question, pair.student_ids, pair.teacher_ids] for pair in data.pairs],
        "report": data.prompt_report.to_dict() | {"first": data.prompt_report.skipped_ids},
        "accounts": {name: account.to_dict() for name, account in data.accounts.items()},
        "held": [problem.question for problem in data.validation_sets["held"]],
        "message": str(refused.value),
    }
    return {"rank": rank(), "world": processes(), "read": len(read), "made": len(set(made)), "got": got}


@pytest.fixture
def source(tmp_path):
    rows = [{"problem": p.question, "solution": p.solution, "answer": p.answer} for p in PROBLEMS]
    for number in (3, 9, 12):  # in the parts of both processes; the first of them is named
        rows[number] |= {"problem": f"{number} {LONG}"}
    for name, some in (("sums.jsonl", rows), ("held.jsonl", rows[4:7])):
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in some))
    return tmp_path / "sums.jsonl"


def test_processes_share_reading_and_contexts(source, tmp_path):
    alone = json.loads(json.dumps(counted(source)))
    assert alone["made"] == len(PROBLEMS)
    assert alone["got"]["report"]["skipped_student_too_long"] == 3
    for done in nursery.run_together(2, "-c", SCRIPT, str(source), str(tmp_path)):
        assert done.returncode == 0, done.stderr[-2000:]
    both = [json.loads(Path(tmp_path, f"{number}.json").read_text()) for number in (0, 1)]
    assert [(one["rank"], one["world"]) for one in both] == [(0, 2), (1, 2)]
    assert [one["read"] for one in both] == [alone["read"], 0]
    assert [one["made"] for one in both] == [len(PROBLEMS) // 2] * 2
    assert all(one["got"] == alone["got"] for one in both)
