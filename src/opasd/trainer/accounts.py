"""An account of each problem set of a run: which rows are used, which are not and why; `data.json` keeps it.

A validation set is tried before the first step: a question that cannot be asked must not end a run half-way.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opasd.config import ModelConfig
from opasd.data.problems import DataReport
from opasd.data.sets import RunSet, digest
from opasd.errors import ConfigError, PromptError
from opasd.model.loading import hub_commit
from opasd.prompts.contexts import PromptReport
from opasd.prompts.pairs import PromptBuilder


@dataclass(frozen=True, slots=True)
class Account:
    """Which rows of a set are used, and why the others are not."""

    data: DataReport
    prompts: PromptReport
    digest: str
    """Digest of the used problems, in their order."""

    def to_dict(self) -> dict[str, Any]:
        """Return the account as JSON types."""
        prompts = {"skipped": dict(self.prompts.skipped), "first": self.prompts.skipped_ids}
        faults = [str(fault) for fault in self.data.faults]
        return asdict(self.data) | {"faults": faults, "prompts": prompts, "digest": self.digest}

    def __str__(self) -> str:
        if not self.prompts.skipped:
            return str(self.data)
        reasons = "; ".join(f"{reason} ({', '.join(ids)})" for reason, ids in self.prompts.skipped_ids.items())
        return f"{self.data} No prompt can be made of {self.prompts.skipped.total()} of these: {reasons}."


def askable(
    name: str, problems: RunSet, builder: PromptBuilder, *, thinking: bool | None = None
) -> tuple[RunSet, Account]:
    """Return the problems of a validation set that can be asked, and the account; `on_bad_row` may refuse the rest."""
    usable, report = [], PromptReport()
    for problem in problems:
        try:
            builder.student_ids(problem.question, thinking=thinking)
        except PromptError as error:
            if problems.on_bad_row == "stop":
                raise PromptError(f"validation set {name}, {problem.id}: {error}", error.reason) from error
            report.skip(problem, error.reason)
        else:
            report.rows += 1
            usable.append(problem)
    account = Account(problems.report, report, digest(usable))
    if not usable:
        raise ConfigError(f"no question of the validation set {name} can be asked: {account} Repair it or leave it out")
    return RunSet(tuple(usable), problems.report, problems.on_bad_row, config=problems.config), account


def write_accounts(accounts: Mapping[str, Account], path: Path) -> None:
    """Write the accounts to a file, and name the sets with unused rows on stderr."""
    path.write_text(json.dumps({name: account.to_dict() for name, account in accounts.items()}, indent=2) + "\n")
    for name, account in accounts.items():
        if account.data.kept < account.data.rows or account.prompts.skipped:
            sys.stderr.write(f"{name}: {account}\n")


def write_model(model: ModelConfig, path: Path) -> None:
    """Write with which commit of a model in the hub's cache a run begins; a local model has none."""
    if commit := hub_commit(model):
        named = {"name_or_path": model.name_or_path, "revision": model.revision, "commit": commit}
        path.write_text(json.dumps(named, indent=2) + "\n")


def check_same_problems(accounts: Mapping[str, Account], path: Path) -> None:
    """Refuse problems that differ from those in an earlier account; a file without a digest refuses nothing."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        digests = {name: earlier[name]["digest"] for name in accounts if name in earlier and "digest" in earlier[name]}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return
    for name in digests:
        if digests[name] != accounts[name].digest:
            raise ConfigError(
                f"{name}: the problems are not those that the run in {path.parent} began with (then: "
                f"{earlier[name].get('kept')} rows of {earlier[name].get('source')}, now: {accounts[name].data.kept}); "
                "give it the same data again, or begin another run"
            )
