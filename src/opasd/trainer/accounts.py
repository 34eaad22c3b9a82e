"""The problem sets of a run: what it is given made problems, tried with its prompts, and an account of both.

    train = as_set(rows, on_bad_row="skip", solutions=True)
    held_out, account = askable("aime", as_set(rows, solutions=False), builder)
    keep({"validation_data.aime": account}, folder / "data.json")
    check_same({"validation_data.aime": account}, folder / "data.json")    # when the run goes on

A validation set is tried before the first step: a question that cannot be asked must not end a run half-way.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opasd.data.problems import DataReport
from opasd.data.sets import RunSet, digest
from opasd.errors import ConfigError, PromptError
from opasd.prompts.pairs import PromptBuilder, PromptReport


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the rows of a set, from the source to the prompts."""

    data: DataReport
    prompts: PromptReport
    digest: str
    """Of the problems that are used, in their order."""

    @property
    def whole(self) -> bool:
        """Whether every row is used."""
        return self.data.kept == self.data.rows and not self.prompts.skipped

    def to_dict(self) -> dict[str, Any]:
        """The account as JSON types."""
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
    """The problems of a validation set whose question can be asked, all of them or what its `on_bad_row` leaves."""
    kept, report = [], PromptReport()
    for problem in problems:
        try:
            builder.student_ids(problem.question, thinking=thinking)
        except PromptError as error:
            if problems.on_bad_row == "stop":
                raise PromptError(f"validation set {name}, {problem.id}: {error}", error.reason) from error
            report.skip(problem, error.reason)
        else:
            report.rows += 1
            kept.append(problem)
    account = Account(problems.report, report, digest(kept))
    if not kept:
        raise ConfigError(f"no question of the validation set {name} can be asked: {account} Repair it or leave it out")
    return RunSet(tuple(kept), problems.report, problems.on_bad_row), account


def keep(accounts: Mapping[str, Account], path: Path) -> None:
    """Write the accounts down, and tell of what was left out."""
    path.write_text(json.dumps({name: account.to_dict() for name, account in accounts.items()}, indent=2) + "\n")
    for name, account in accounts.items():
        if not account.whole:
            sys.stderr.write(f"{name}: {account}\n")


def check_same(accounts: Mapping[str, Account], path: Path) -> None:
    """Refuse problems other than those that were kept account of; accounts that say nothing of them are no reason."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        known = {name: before[name]["digest"] for name in accounts if name in before and "digest" in before[name]}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return
    for name in known:
        if known[name] != accounts[name].digest:
            raise ConfigError(
                f"{name}: the problems are not those that the run in {path.parent} began with (then: "
                f"{before[name].get('kept')} rows of {before[name].get('source')}, now: {accounts[name].data.kept}); "
                "give it the same data again, or begin another run"
            )
