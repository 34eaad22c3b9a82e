"""`opasd probe`, as it is typed: the figures of the page and of the file, and hostile input."""

import contextlib
import io
import itertools
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from opasd.cli import main
from opasd.probe import measure as probe
from opasd.probe.measure import GradedAnswer, Probe, Trajectory
from opasd.probe.summary import summarise
from tests import nursery
from tests.cli.conftest import CommandLine
from tests.processes import run
from tests.training import PROBLEMS, TOKENIZER, make_model

SHORT = ["--rollout.max-new-tokens", "48"]


def by_problem(rows, name, chosen=lambda row: True):
    """Means over samples, then over problems."""
    problems = {}
    for row in rows:
        if chosen(row):
            problems.setdefault((row["section"], row["problem"]), []).append(row[name])
    return statistics.fmean(map(statistics.fmean, problems.values()))


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """The page and the file of one probe of the embedded model, and what its `judge` was given and gave."""
    target, calls, own = tmp_path_factory.mktemp("probe") / "found.json", [], probe.judge
    words = ["probe", "lab-opsd", "--problems", "12", "--samples", "3", *SHORT, "--json", str(target)]

    def judge(model, rollouts, *rest, **more):
        calls.append((rollouts, own(model, rollouts, *rest, **more)))
        return calls[-1][1]

    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as page,
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        patch.setattr(probe, "judge", judge)
        assert main(words) == 0
    return (page.getvalue(), said.getvalue(), json.loads(target.read_text())), calls


@pytest.fixture(scope="module")
def probed(judged):
    return judged[0]


def test_the_page_says_what_the_file_holds(probed):
    page, _, record = probed
    summary, rows = record["summary"], record["rows"]
    lines = {line[:40].strip(): line[40:] for line in page.splitlines()}
    first = re.compile(r"\s*(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]")

    def shown(label):
        return [float(part) for part in first.match(lines[label]).groups()]

    for label, figure, scale, digits in (
        ("accuracy, %", summary["student"]["accuracy"], 100, 1),
        ("tokens", summary["student"]["tokens"], 1, 1),
        ("cut off at 48 tokens, %", summary["student"]["truncated"], 100, 1),
        ("log ratio per token, right answers", summary["log_ratio_right"], 1, 4),
        ("log ratio per token, wrong answers", summary["log_ratio_wrong"], 1, 4),
        ("preference for right over wrong", summary["preference"], 1, 3),
        ("before the last tenth of the tokens", summary["preference_before_the_end"], 1, 3),
        ("attention divergence lower for right", summary["attention_preference"], 1, 3),
        ("log ratio of an answer, right − wrong", summary["log_ratio_difference"], 1, 2),
        ("token divergence per token", summary["divergence"], 1, 4),
        ("held by the 10 % largest tokens, %", summary["top_share"], 100, 1),
        ("clipped (pointwise, 0.05), %", summary["clipped"], 100, 1),
        ("attention divergence per token", summary["attention_divergence"], 1, 4),
        ("attention on the solution, ρ", summary["solution_mass"], 1, 4),
    ):
        expected = [scale * figure[part] for part in ("mean", "low", "high")]
        assert shown(label) == pytest.approx(expected, abs=0.51 * 10**-digits), label
        assert figure["low"] <= figure["mean"] <= figure["high"]
    for label, name in (
        ("preference for right over wrong", "preference"),
        ("before the last tenth of the tokens", "preference_before_the_end"),
    ):
        assert lines[label].endswith(f"  {summary[name]['problems']} problems, {summary[name]['pairs']} pairs")
    right, wrong = (summary[f"attention_divergence_{kind}"]["mean"] for kind in ("right", "wrong"))
    assert lines["attention divergence lower for right"].endswith(f"  right {right:.4f}, wrong {wrong:.4f}")
    at = page.splitlines().index("log ratio in each tenth of an answer's tokens, first to last")
    for line, kind in zip(page.splitlines()[at + 1 : at + 3], ("right", "wrong"), strict=True):
        label, answers, *numbers = line.split()
        assert (label, answers) == (kind, "answers")
        assert [float(number) for number in numbers] == pytest.approx(summary["tenths"]["log_ratio"][kind], abs=0.51e-3)
    assert len(rows) == 36
    assert [row["sample"] for row in rows] == [0, 1, 2] * 12


def test_the_figures_are_those_of_the_rows(probed):
    *_, record = probed
    summary, rows, teacher = record["summary"], record["rows"], record["teacher_rows"]
    names = ("divergence", "top_share", "clipped", "attention_divergence", "solution_mass")
    for name in names:
        assert summary[name]["mean"] == pytest.approx(by_problem(rows, name))
    for name, wanted in (("log_ratio_right", True), ("log_ratio_wrong", False)):
        expected = by_problem(rows, "log_ratio", lambda row, wanted=wanted: row["correct"] == wanted)
        assert summary[name]["mean"] == pytest.approx(expected)
    roles = (("student", rows), ("teacher", teacher))
    for role, several in roles:
        assert summary[role]["accuracy"]["mean"] == pytest.approx(by_problem(several, "correct"))
        assert summary[role]["tokens"]["mean"] == pytest.approx(by_problem(several, "tokens"))
        cut = [row | {"cut": row["finish_reason"] == "length"} for row in several]
        assert summary[role]["truncated"]["mean"] == pytest.approx(by_problem(cut, "cut"))
        assert summary[role]["leaks"]["mean"] == by_problem(several, "leaks") == 0
    assert all(row["tokens"] <= 48 for row in rows + teacher)
    assert 0 < summary["student"]["truncated"]["mean"] < 1
    # With the solution in view the embedded model makes no mistake; without it many.
    ended = {role: [row["correct"] for row in several if row["finish_reason"] == "stop"] for role, several in roles}
    assert all(ended["teacher"])
    assert len(ended["teacher"]) >= 3
    assert sum(ended["student"]) < 0.7 * len(ended["student"])
    pairs = 0
    for problem in {row["problem"] for row in rows}:
        own = [row["correct"] for row in rows if row["problem"] == problem and row["finish_reason"] == "stop"]
        pairs += sum(own) * (len(own) - sum(own))
    assert summary["preference"]["pairs"] == pairs


def test_the_tenths_of_the_file_are_those_of_its_rows(probed):
    *_, record = probed
    summary, rows, teacher = record["summary"], record["rows"], record["teacher_rows"]
    for row in rows:
        assert set(row["tenths"]) == {"log_ratio", "divergence", "attention_divergence", "control"}
        for name, sums in row["tenths"].items():
            assert len(sums) == 10
            assert sum(sums) == pytest.approx(row["tokens"] * row[name])
    finished = [row for row in rows if row["finish_reason"] == "stop"]
    kinds = {kind: {row["problem"] for row in finished if row["correct"] is kind} for kind in (True, False)}
    both = kinds[True] & kinds[False]
    assert summary["tenths"]["log_ratio"]["problems"] == len(both) > 1
    for name, kind in itertools.product(("log_ratio", "attention_divergence"), (True, False)):
        for number in range(10):
            tenth_rows = [r | {"nats": r["tenths"][name][number]} for r in finished if r["problem"] in both]
            expected = by_problem(tenth_rows, "nats", lambda row, kind=kind: row["correct"] is kind)
            assert summary["tenths"][name]["right" if kind else "wrong"][number] == pytest.approx(expected)
    # What was read from the file says what was printed.
    student = [[Trajectory(**row) for row in rows[start : start + 3]] for start in range(0, 36, 3)]
    assert json.loads(json.dumps(summarise(Probe(student, [GradedAnswer(**row) for row in teacher])))) == summary


def test_the_control_is_the_same_answer_with_another_problems_solution(judged):
    (*_, record), ((own, _), (controls, readings)) = judged
    for row, own_sample, control, reading in zip(record["rows"], own, controls, readings, strict=True):
        assert row["control"] == pytest.approx(statistics.fmean(reading["log_ratio"]))
        assert own_sample.pair.problem.id == control.pair.problem.id == row["problem"]
        assert (control.completion_ids, control.student_ids) == (own_sample.completion_ids, own_sample.student_ids)
        assert control.pair.problem.answer != own_sample.pair.problem.answer
        assert control.pair.problem.solution in {sample.pair.problem.solution for sample in own}


def test_the_control_on_the_page_is_that_of_the_rows(probed):
    out, _, record = probed
    summary = record["summary"]
    assert summary["own_adds"]["mean"] == pytest.approx(
        summary["preference"]["mean"] - summary["control_preference"]["mean"]
    )
    # Another problem's solution is something else to read, and no surprise where this one's was none.
    assert all(row["control"] != row["log_ratio"] for row in record["rows"])
    assert re.search(r"  with another problem's reference +[01]\.\d+ \[.*\] +its own adds -?0\.\d+ \[", out)


def test_the_file_says_what_was_asked_and_where(probed):
    _, said, record = probed
    assert record["settings"]["config"]["rollout"]["max_new_tokens"] == 48
    assert record["settings"]["config"]["objective"]["attention_weight"] == 0  # and yet it was measured
    assert (record["settings"]["source"], record["settings"]["problems"], record["settings"]["samples"]) == (
        "lab-opsd",
        12,
        3,
    )
    assert record["environment"]["versions"]["torch"]
    assert "36/36" in said
    assert "found.json" in said


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A tiny random model and problems that it never solves."""
    monkeypatch.chdir(tmp_path)
    make_model().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    rows = [{"problem": p.question, "solution": p.solution, "answer": p.answer} for p in PROBLEMS]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    del rows[1]["answer"]
    (tmp_path / "open.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "tiny.yaml").write_text(
        "model: {name_or_path: model}\ndata: {source: sums.jsonl}\nrollout: {max_new_tokens: 4}\n"
        "train: {extra: {use_cpu: true}}\n"
    )
    return tmp_path


def test_no_problem_with_both_is_said_plainly(workspace, capsys):
    assert main(["probe", "tiny.yaml", "--problems", "40", "--samples", "2", "--json", "f.json"]) == 0
    said = capsys.readouterr()
    assert "there is no preference; give more --problems or --samples" in said.out
    assert "Whether training is worth it cannot be said" in said.out
    assert re.search(r"preference for right over wrong +– +no problem has both\n +with another.* –\n", said.out)
    assert "in each tenth" not in said.out
    assert "40 problems were asked for; data has 16" in said.err
    record = json.loads((workspace / "f.json").read_text())
    assert (record["summary"]["preference"], record["summary"]["late"]) == (None, None)
    assert all(row["tenths"] == {} for row in record["rows"])  # four tokens
    assert sorted(path.name for path in workspace.iterdir()) == [
        "f.json",
        "model",
        "open.jsonl",
        "sums.jsonl",
        "tiny.yaml",
    ]
    assert main(["probe", "tiny.yaml", "--problems", "2", "--samples", "1", "--train.seed", "5"]) == 0
    assert "there is no preference; give --samples 2 or more.\n" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_answers(workspace, capsys):
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert main(["probe", "tiny.yaml", "--problems", "3", "--train.seed", seed, "--json", f"{name}.json"]) == 0
    a, b, c = (json.loads((workspace / f"{name}.json").read_text())["rows"] for name in "abc")
    assert a == b
    assert [row["log_ratio"] for row in a] != [row["log_ratio"] for row in c]
    assert len({row["log_ratio"] for row in a}) > 6  # samples of a problem are not one another's copies


def test_an_engine_with_weights_of_its_own_is_asked_and_checked(workspace, capsys):
    """A server, its tokens taken as they are; its log-probabilities are not this model's."""
    server = Path(__file__).parents[1] / "rollout" / "vllm" / "fake_server.py"
    with subprocess.Popen([sys.executable, str(server), "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = f"http://localhost:{int(process.stdout.readline())}"
            words = ["probe", "tiny.yaml", "--problems", "3", "--samples", "2", "--json", "served.json"]
            words += ["--rollout.engine", "vllm_server", "--rollout.servers.urls", url]
            assert main(words) == 2
            assert "does not serve the student's weights" in capsys.readouterr().err
            assert main([*words, "--rollout.drift.every", "0"]) == 0
        finally:
            process.kill()
    record = json.loads((workspace / "served.json").read_text())
    assert len(record["rows"]) == 6
    assert len(record["teacher_rows"]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["labb"], 'no recipe "labb"; did you mean lab?'),
        (["lab", "--problems", "0"], "--problems: got 0; give 1 or more"),
        (["lab", "--problems", "-3"], "--problems: got -3; give 1 or more"),
        (["lab", "--samples", "0"], "--samples 0 samples nothing"),
        (["lab", "--json", "tiny.yaml"], "--json: tiny.yaml exists and is not overwritten; give another name"),
        (["lab", "--json", "model"], "--json: model exists"),
        (["lab", "--json", "gone/f.json"], "--json: gone/f.json cannot be written (No such file or directory)"),
        (["lab", "--json", "x" * 300], "cannot be written (File name too long)"),
        (["lab", "--json", ""], "--json: . exists"),
        (["tiny.yaml", "--data.source", "gone.jsonl"], "data.source: no file or folder 'gone.jsonl'"),
        (["tiny.yaml", "--data.source", "open.jsonl"], "1 of 16 problems have no answer, such as"),
        (["tiny.yaml", "--data.columns.answer", "nothing"], "nothing"),
        (["tiny.yaml", "--prompts.max-student-tokens", "3"], "max_student_tokens = 3"),
        (["tiny.yaml", "--model.name-or-path", "./gone"], "no folder './gone'"),
        (["tiny.yaml", "--train.max-steps", "0"], "train.max_steps"),
    ],
)
def test_mistakes_are_one_message(workspace, capsys, words, message):
    before = sorted(workspace.iterdir())
    assert main(["probe", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""
    assert sorted(workspace.iterdir()) == before


def test_a_launch_of_many_processes_is_refused(workspace, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["probe", "lab"]) == 2
    assert "got a launch of 4; run it without a launcher" in capsys.readouterr().err


def test_processes_measure_what_one_measures(tmp_path):
    words = ["probe", "lab", "--problems", "5", "--samples", "2", "--look", *SHORT]
    found, pages = [], ""
    for count in ("1", "2"):
        target = tmp_path / f"{count}.json"
        done = nursery.run("-m", "opasd.cli", *words, "--num-processes", count, "--json", str(target))
        assert done.returncode == 0, done.stderr
        found.append(json.loads(target.read_text()))
        pages += done.stdout
    one, two = found
    assert set(one) == set(two)
    for name in ("rows", "teacher_rows", "look_rows"):
        assert len(one[name]) == len(two[name]) > 0
        for first, second in zip(one[name], two[name], strict=True):
            assert_close(first, second)
    assert_close(one["summary"], two["summary"])
    assert len(one["rows"]) == 10
    assert pages.count("preference for right over wrong") == 2


def assert_close(first, second):
    """Equal, up to the rounding of numbers."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        first, second = [*first.values()], [*second.values()]
    if isinstance(first, list):
        for pair in zip(first, second, strict=True):
            assert_close(*pair)
    else:
        assert second == (pytest.approx(first, rel=1e-3, abs=1e-3) if isinstance(first, float) else first)


def test_servers_need_one_process(workspace, capsys):
    urls = ["--rollout.engine", "vllm_server", "--rollout.servers.urls", "http://localhost:1"]
    assert main(["probe", "lab", *urls, "--num-processes", "2"]) == 2
    assert "servers share the requests themselves; leave it out" in capsys.readouterr().err


def test_help_and_mistakes_need_no_torch(opasd: CommandLine):
    code, text, _ = opasd("probe", "--help")
    assert code == 0
    assert "--samples" in text
    code = "import sys; from opasd.cli import main; main(['probe', 'lab', '--problems', '0'])\n"
    code += "print('torch' in sys.modules)"
    done = run([sys.executable, "-c", code])
    assert done.stdout == "False\n"
    assert "--num" in opasd.refuses("probe", "lab", "--num-problems", "3")


def test_where_the_embedded_model_looks(tmp_path, capsys):
    """The figures of the page are those of the file, which agree with its rows; the picture is drawn."""
    files = tmp_path / "look.json", tmp_path / "look.svg"
    words = ["probe", "lab", "--look", "--samples", "0", "--problems", "6"]
    assert main([*words, "--json", str(files[0]), "--figure", str(files[1])]) == 0
    out, record = capsys.readouterr().out, json.loads(files[0].read_text())
    looks, rows = record["look"], record["look_rows"]
    assert "summary" not in record
    assert looks["responses"] == "gold"
    assert "the gold solutions, 6 problems" in out
    assert {row["reference"] for row in rows} == {"solution", "answer"}
    for name, figures in looks["references"].items():
        own = [row for row in rows if row["reference"] == name]
        for layer in range(looks["layers"]):
            for kind in ("student", "teacher", "projected"):
                mean = statistics.fmean(row[kind][layer] for row in own)
                assert figures[kind][layer]["mean"] == pytest.approx(mean, rel=1e-3)
            parts = [figures["loss"][part][layer]["mean"] for part in figures["loss"]]
            assert sum(parts) == pytest.approx(1, abs=1e-3)
    masses = [figure["mean"] for figure in looks["references"]["solution"]["student"]]
    floor = max(max(masses) / 2, 10 * looks["uniform"])
    assert looks["looking_layers"] == [n for n, mass in enumerate(masses) if mass >= floor] == [2]
    assert [one["about"] for one in record["advice"]] == ["train", "reference", "layers", "clip"]
    assert all(f"- {one['says']}" in out for one in record["advice"])
    assert files[1].read_text().startswith("<svg")
    assert main([*words, "--json", str(files[0])]) == 2  # nothing is overwritten


def test_looking_at_the_students_own_answers_without_known_needs(workspace, capsys):
    words = ["probe", "tiny.yaml", "--problems", "2", "--samples", "1", "--look", "--responses", "student"]
    assert main([*words, "--figure", "empty.svg"]) == 0
    out, errors = capsys.readouterr()
    assert "no figure: what a step needs is not known" in errors
    assert not Path("empty.svg").exists()
    assert "the student's own answers, 2 problems, 0 steps whose need is known" in out
    assert "what a step needs is not known" in out
    assert "by layer; spread" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "0"], "--samples 0 samples nothing; give --look"),
        (["--samples", "0", "--look", "--responses", "student"], "--samples 0 samples nothing"),
        (["--figure", "f.svg"], "give --look too"),
        (["--look", "--figure", "f", "--json", "./f"], "--figure and --json name one file"),
    ],
)
def test_options_that_need_others(words, message, workspace, capsys):
    assert main(["probe", "tiny.yaml", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_named_is_what_is_probed(opasd: CommandLine) -> None:
    """The recipe's own validation set is not read."""
    (opasd.folder / "mine.jsonl").write_text('{"problem": "1 + 1?", "solution": "1 + 1 = 2", "answer": "2"}\n')
    words = ["probe", "lab", "--data", "mine.jsonl", "--look", "--samples", "0", "--json", "found.json"]
    code, _, errors = opasd(*words)
    assert code == 0, errors
    found = json.loads((opasd.folder / "found.json").read_text())
    assert {row["problem"] for row in found["look_rows"]} == {"mine.jsonl:1"}
