"""An evaluation in the form of other tools: lighteval's results file and lm-evaluation-harness's results and samples.

One file for each target, as those tools have one model a file. Scores are means over problems, `_stderr` the standard
error over problems, of Maj@k a quarter of its interval's width. What those tools would have drawn themselves and this
evaluation has not is left out, not made up.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

from opasd.errors import ConfigError
from opasd.evaluation.folder import FILES, PROBLEMS, RESULTS, SAMPLES
from opasd.evaluation.samples import Sample, SampleFile
from opasd.files import JsonLines, json_line, read_object, refuse_traps, write_bytes, write_json

Form = Literal["lighteval", "lm-eval"]
_UNSAFE = re.compile(r"[\"<>:/|\\?*\[\]]+")
"""Characters that lm-evaluation-harness replaces in a model's name."""


def export(folder: Path, form: Form, output: Path) -> list[Path]:
    """Write the evaluation in `folder` in another tool's form below `output`; return the files."""
    refuse_traps(folder, FILES)
    evaluation = read_object(folder / RESULTS)
    if not {"results", "targets", "benchmarks", "settings"} <= evaluation.keys():
        raise ConfigError(f"{folder} has no results ({RESULTS}); give the folder of a finished evaluation")
    try:
        written = _exported(folder, evaluation, form, output)
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder} is damaged ({type(error).__name__}: {error}); give a whole evaluation") from error
    if not written:
        raise ConfigError(f"{folder} has no whole result to export; finish the evaluation first")
    return written


def _exported(folder: Path, evaluation: Mapping[str, Any], form: Form, output: Path) -> list[Path]:
    written: list[Path] = []
    largest = max((row["budget"] for row in evaluation["results"]), default=0)
    for target, about in evaluation["targets"].items():
        rows = [row for row in evaluation["results"] if row["target"] == target and row["budget"] == largest]
        if not rows:
            continue
        date = _name(str((evaluation.get("environment") or {}).get("time", "unknown"))[:19].replace(":", "-"))
        if form == "lighteval":
            parts = [_name(part) for part in about["model"].split("/") if part]
            path = output.joinpath("results", *parts, f"results_{date}.json")
            if len(evaluation["targets"]) > 1:  # several targets may share a base model
                path = output / "results" / _name(target) / path.name
            _write(path, lighteval_results(evaluation, target, rows))
            written.append(path)
            continue
        path = output / _name(target) / f"results_{date}.json"
        _write(path, harness_results(evaluation, target, rows))
        written.append(path)
        problems = _problems(folder)
        for row in rows:
            own = (s for s in SampleFile(folder / SAMPLES) if (s.target, s.benchmark) == (target, row["benchmark"]))
            lines = harness_samples(own, problems, evaluation)
            written.append(path.with_name(f"samples_{_name(row['benchmark'])}_{date}.jsonl"))
            write_bytes(written[-1], b"".join(map(json_line, lines)))
    return written


def _scores(row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return Avg@n, Pass@n and Maj@n with their standard errors over problems."""
    n = row["samples"]
    shares = [own["correct"] / n for own in row["per_problem"].values()]
    passed = [float(share > 0) for share in shares]
    error = [stdev(own) / sqrt(len(own)) if len(own) > 1 else 0.0 for own in (shares, passed)]
    scores = {f"avg@{n}": (row["avg"]["mean"], error[0])}
    if n > 1:
        scores[f"pass@{n}"] = (row["pass"][str(n)]["mean"], error[1])
        majority = row["maj"][str(n)]
        scores[f"maj@{n}"] = (majority["mean"], (majority["high"] - majority["low"]) / (2 * 1.96))
    return scores


def lighteval_results(evaluation: Mapping[str, Any], target: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of lighteval's results_DATE.json."""
    about, profile = evaluation["targets"][target], evaluation["settings"]["profile"]
    results: dict[str, dict[str, float]] = {}
    tasks, versions, summaries = {}, {}, {}
    for row in rows:
        benchmark = evaluation["benchmarks"][row["benchmark"]]
        task = f"{row['benchmark']}|0"
        results[task] = {}
        for name, (mean, error) in _scores(row).items():
            results[task] |= {name: mean, f"{name}_stderr": error}
        versions[task] = 0
        tasks[task] = {
            "name": row["benchmark"],
            "hf_repo": benchmark["source"],
            "hf_revision": benchmark["revision"],
            "num_fewshots": 0,
            "num_samples": [row["samples"]],
            "generation_size": profile["sampling"]["max_new_tokens"],
            "original_num_docs": benchmark["problems"],
            "effective_num_docs": row["problems"],
        }
        summaries[task] = {
            "hashes": {"hash_examples": benchmark["fingerprint"]},
            "truncated": 0, "non_truncated": row["problems"], "padded": 0, "non_padded": 0,  # of prompts
        }  # fmt: skip
    results["all"] = _means(results.values())
    return {
        "config_general": {
            "lighteval_sha": "?",
            "num_fewshot_seeds": 1,
            "max_samples": None,
            "job_id": None,
            "start_time": None,
            "end_time": None,
            "total_evaluation_time_secondes": _seconds(evaluation),
            "model_config": {
                "model_name": about["model"], "revision": about["revision"], "dtype": about["dtype"],
                "generation_parameters": {**profile["sampling"], "seed": profile["seed"]},
            },
            "model_name": about["model"],
            "exported_by": f"opasd {evaluation['opasd']}",
        },
        "results": results,
        "versions": versions,
        "config_tasks": tasks,
        "summary_tasks": summaries,
        "summary_general": {
            "hashes": {},
            **{
                name: sum(own[name] for own in summaries.values())
                for name in ("truncated", "non_truncated", "padded", "non_padded")
            },
        },
    }  # fmt: skip


def _means(tasks: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Return each score's mean over the tasks that have it."""
    own = {name: [task[name] for task in tasks if name in task] for name in {name for task in tasks for name in task}}
    return {name: sum(values) / len(values) for name, values in sorted(own.items())}


def _seconds(evaluation: Mapping[str, Any]) -> str | None:
    """Return the evaluation's time on the clock as text, where it is known."""
    seconds = (evaluation.get("spent", {}).get("total") or {}).get("wall_seconds")
    return None if seconds is None else str(seconds)


def _started(evaluation: Mapping[str, Any]) -> float | None:
    """Return when the evaluation began, in seconds since 1970, where it is known."""
    try:
        return datetime.fromisoformat(str((evaluation.get("environment") or {})["time"])).timestamp()
    except (KeyError, ValueError):
        return None


def harness_results(evaluation: Mapping[str, Any], target: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of lm-evaluation-harness's results_DATE.json."""
    about, profile = evaluation["targets"][target], evaluation["settings"]["profile"]
    contents: dict[str, Any] = {"results": {}, "group_subtasks": {}, "configs": {}, "versions": {}, "n-shot": {}}
    contents |= {"higher_is_better": {}, "n-samples": {}}
    for row in rows:
        name, benchmark = row["benchmark"], evaluation["benchmarks"][row["benchmark"]]
        scores = _scores(row)
        contents["results"][name] = {"name": name, "alias": name, "sample_len": row["problems"]}
        for score, (mean, error) in scores.items():
            contents["results"][name] |= {f"{score},none": mean, f"{score}_stderr,none": error}
        contents["group_subtasks"][name] = []
        contents["configs"][name] = {
            "task": name, "dataset_path": benchmark["source"], "output_type": "generate_until", "num_fewshot": 0,
            "repeats": row["samples"], "generation_kwargs": {**profile["sampling"]},
            "metadata": {"version": 0, "revision": benchmark["revision"], "fingerprint": benchmark["fingerprint"]},
        }  # fmt: skip
        contents["versions"][name], contents["n-shot"][name] = 0, 0
        contents["higher_is_better"][name] = dict.fromkeys(scores, True)
        contents["n-samples"][name] = {"original": benchmark["problems"], "effective": row["problems"]}
    environment = evaluation.get("environment") or {}
    return contents | {
        "config": {
            "model": evaluation["settings"]["engine"],
            "model_args": {"pretrained": about["model"], "peft": about["adapter"], "revision": about["revision"]},
            "model_dtype": about["dtype"], "model_revision": about["revision"] or "main", "batch_size": None,
            "limit": None, "bootstrap_iters": 0, "gen_kwargs": {**profile["sampling"]}, "random_seed": profile["seed"],
        },
        "transformers_version": (environment.get("versions") or {}).get("transformers"),
        "model_source": evaluation["settings"]["engine"],
        "model_name": about["model"],
        "model_name_sanitized": _name(about["model"]),
        "system_instruction": None,
        "fewshot_as_multiturn": None,
        "task_hashes": {name: evaluation["benchmarks"][name]["fingerprint"] for name in contents["results"]},
        "total_evaluation_time_seconds": _seconds(evaluation),
        "date": _started(evaluation),
        "exported_by": f"opasd {evaluation['opasd']}",
    }  # fmt: skip


def harness_samples(
    samples: Iterable[Sample], problems: Mapping[str, Mapping[str, str]], evaluation: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    """Yield the lines of samples_TASK_DATE.jsonl: one a problem, with all its samples."""
    by_problem: dict[str, list[Sample]] = {}
    for sample in samples:
        by_problem.setdefault(sample.problem, []).append(sample)
    sampling = evaluation["settings"]["profile"]["sampling"]
    for number, (problem, own) in enumerate(by_problem.items()):
        own.sort(key=lambda sample: sample.sample)
        doc = dict(problems.get(problem, {"problem": problem, "question": "", "answer": ""}))
        score = f"avg@{len(own)}"
        yield {
            "doc_id": number,
            "doc": doc,
            "target": str(doc["answer"]),
            "arguments": {"gen_args_0": {"arg_0": doc["question"], "arg_1": dict(sampling)}},
            "resps": [[sample.text for sample in own]],
            "filtered_resps": [sample.answer or "" for sample in own],
            "filter": "none",
            "metrics": [score],
            "doc_hash": _hash(json.dumps(doc, sort_keys=True)),
            "prompt_hash": _hash(doc["question"]),
            "target_hash": _hash(str(doc["answer"])),
            score: sum(sample.verdict == "correct" for sample in own) / len(own),
        }


def _problems(folder: Path) -> dict[str, dict[str, str]]:
    return {row["problem"]: row for row in JsonLines(folder / PROBLEMS)}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def _name(text: str) -> str:
    """Return a text of the evaluation as a file's name, which leads nowhere else."""
    return re.sub(r"^\.+$", "__", _UNSAFE.sub("__", text))


def _write(path: Path, value: object) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists and is not overwritten; give another --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value, indent=2)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); give another --output") from error
