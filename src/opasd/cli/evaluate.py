"""Evaluate models on benchmarks: base, runs, adapters or merged models, several at once.

Samples go to samples.jsonl as they come; the same command goes on where a killed one stopped. Results are in
evaluation.json and, for a run, in its folder too.
"""

import argparse
import errno
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from opasd.choices import Engine, Precision
from opasd.errors import ConfigError
from opasd.progress import SampleProgress

if TYPE_CHECKING:
    from opasd.evaluation.loop import Evaluation

EXAMPLES = """examples:
  opasd evaluate lab                                    the embedded model on its own task
  opasd evaluate base runs/a runs/b --benchmarks aime24,aime25
  opasd evaluate Qwen/Qwen3-1.7B --benchmarks math500,mine.jsonl --data-dir ~/benchmarks --samples 4
  opasd evaluate --list"""


def run(args: list[str]) -> int:
    """The command."""
    options = _parser().parse_args(args)
    if options.list:
        return _list(as_json=options.json)
    if not options.targets:
        raise ConfigError("nothing to evaluate; give base, lab, a run, an adapter, a model's folder or a hub name")
    asked = _asked(options)
    from opasd.evaluation import folder as folders
    from opasd.evaluation.loop import evaluate
    from opasd.evaluation.results import table
    from opasd.run.folder import hold

    settings = asked.settings()
    path = options.output or Path("evaluations") / folders.default_name(settings)
    progress = SampleProgress()
    folders.make(path)
    with hold(path, "evaluation"):
        asked_for, settings = settings["targets"], folders.enter(path, settings)
        # Differences are against the first that was asked for, whatever the folder has had before.
        settings = settings | {"targets": asked_for | settings["targets"]}
        try:
            evaluation = evaluate(asked, path, settings, _opener(options), progress)
        except KeyboardInterrupt:
            progress.say(f"stopped; what was drawn is in {path}: the same command goes on")
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS):
                raise
            raise ConfigError(
                f"{path} cannot be written to ({error.strerror}); free some space: the same command goes on"
            ) from error
        finally:
            progress.end()
    if options.json:
        sys.stdout.write(json.dumps(evaluation, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(f"{table(evaluation)}\n{path / folders.RESULTS}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="opasd evaluate",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "targets", metavar="TARGET", nargs="*", help="base, lab, a run, adapter or model folder, org/name"
    )
    parser.add_argument(
        "--benchmarks", metavar="A,B", action="append", default=[],
        help="names (see --list), data files, folders, or YAML entries; may be repeated",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the benchmarks that come by name")
    parser.add_argument("--model", metavar="MODEL", help="what `base` is; unset: what the adapters were trained on")
    parser.add_argument("--revision", help="commit of --model on the hub")
    parser.add_argument("--dtype", choices=get_args(Precision), help="number format of the weights")
    parser.add_argument("--engine", choices=get_args(Engine), default="transformers", help="what samples")
    parser.add_argument("--server", metavar="URL", action="append", default=[], help="a vLLM server; may be repeated")
    parser.add_argument(
        "--template-option", metavar="K=V", action="append", default=[], type=_template_option,
        help="a variable of the chat template, such as date_string=2026-01-01; may be repeated",
    )  # fmt: skip
    parser.add_argument("--max-batch", metavar="N", type=_count, default=128, help="samples drawn side by side (128)")
    parser.add_argument(
        "--data-dir", metavar="DIR", type=Path, help="local copies of benchmarks; they win over the hub"
    )
    parser.add_argument("--problems", metavar="N", type=_count, help="only the first N problems of each benchmark")
    parser.add_argument("--output", metavar="DIR", type=Path, help="folder; unset: evaluations/… by the settings")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--profile", choices=("paper", "opsd", "lab"), help="settings by name (paper; lab for lab)")
    sampling.add_argument("--samples", metavar="N", type=_count, help="answers for each problem")
    sampling.add_argument("--seed", type=int, help="seed of the samples")
    sampling.add_argument("--temperature", type=float, help="0 takes the likeliest token")
    sampling.add_argument("--top-p", type=float)
    sampling.add_argument("--top-k", type=int, help="0 keeps all")
    sampling.add_argument("--min-p", type=float)
    sampling.add_argument("--max-new-tokens", metavar="N", type=_count, help="longest completion")
    sampling.add_argument("--budgets", metavar="A,B", type=_counts, help="cut the same samples at these lengths too")
    sampling.add_argument(
        "--thinking", action=argparse.BooleanOptionalAction, help="thinking mode of the chat template"
    )
    return parser


def _asked(options: argparse.Namespace) -> "Evaluation":
    """What the options come to; mistakes are told before anything is loaded."""
    from opasd.config import ModelConfig
    from opasd.evaluation.benchmarks import load, requested_benchmarks
    from opasd.evaluation.profiles import requested_profile
    from opasd.evaluation.targets import LAB, resolve
    from opasd.recipes.evaluate import EvaluateConfig

    if options.revision and not options.model:
        raise ConfigError("--revision is the commit of --model; give that too, as in base --model ORG/NAME")
    given = {"name_or_path": options.model, "revision": options.revision, "dtype": options.dtype}
    model = ModelConfig.model_validate({k: v for k, v in given.items() if v}) if options.model else None
    targets = resolve(options.targets, model)
    if options.dtype:
        targets = [replace(t, model=t.model.model_copy(update={"dtype": options.dtype})) for t in targets]
    lab = all(target.model.name_or_path == LAB for target in targets)
    names = [name.strip() for name in ",".join(options.benchmarks).split(",") if name.strip()]
    given: dict[str, Any] = {name: getattr(options, name, None) for name in EvaluateConfig.model_fields}
    given |= {"benchmarks": tuple(names), "server": (), "data_dir": None, "budgets": options.budgets or ()}
    checked = EvaluateConfig.model_construct(**given)
    entries = requested_benchmarks(checked, lab=lab)
    chosen = requested_profile(checked, lab=lab)
    loaded = [load(entry, options.data_dir, options.problems) for entry in entries]
    for one in loaded:
        wanted = one.benchmark.problems
        if wanted and options.problems is None and len(one.problems) != wanted:
            sys.stderr.write(f"{one.name}: {one.source} has {len(one.problems)} problems, not {wanted}\n")
    if (options.engine == "vllm_server") != bool(options.server):
        raise ConfigError("--engine vllm_server and --server http://HOST:PORT go together; give both or neither")
    from opasd.evaluation.loop import Evaluation

    return Evaluation(
        targets, loaded, chosen, options.engine, options.max_batch, template_options=dict(options.template_option)
    )


def _opener(options: argparse.Namespace) -> Any:
    from opasd.config import RolloutConfig, ServersConfig
    from opasd.evaluation.bases import open_base

    servers = ServersConfig(urls=tuple(options.server))
    rollout = RolloutConfig(engine=options.engine, max_batch=options.max_batch, servers=servers)
    return lambda model: open_base(model, rollout)


def _list(*, as_json: bool) -> int:
    from opasd.evaluation.benchmarks import packaged

    entries = packaged()
    if as_json:
        rows = [entry.model_dump(mode="json") for entry in entries.values()]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    for entry in entries.values():
        where = entry.source + (f" at {entry.revision[:12]}" if entry.revision else "")
        sys.stdout.write(
            f"{entry.name:<10} {entry.title:<32} {entry.problems or '?':>5} problems  {entry.kind:<10} {where}\n"
        )
    return 0


def _template_option(text: str) -> tuple[str, str | int | bool]:
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    named: dict[str, bool] = {"true": True, "false": False}
    if value in named:
        return name, named[value]
    try:
        return name, int(value) if re.fullmatch("-?[0-9]+", value) else _unquoted(value)
    except ValueError:  # too many digits, or quotes within quotes
        told = "a number, or a text in quotes as JSON has it"
        raise argparse.ArgumentTypeError(f"expected {told}, got {text!r:.80}") from None


def _unquoted(value: str) -> str:
    """A text that would read as something else may be given as JSON has it: `"true"`, `"7"`."""
    return str(json.loads(value)) if len(value) > 1 and value[0] == value[-1] == '"' else value


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part.strip()) for part in text.split(","))
