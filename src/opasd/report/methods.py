"""Which runs are one method, and the colour of each method.

Runs with one configuration but for their seeds are one method. A method has one name and one slot on the whole page;
the slot decides its colour and, beyond eight, its second mark. Base, OPSD, OPASD and attention only have their own.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opasd.analysis.curves import number
from opasd.report.run import Run
from opasd.report.text import shared_start

KINDS = {"base": 0, "OPSD": 1, "OPASD": 2, "attention only": 3}
"""Method ─► its slot, whatever else is on the page."""
IDENTITY = {("name",), ("output_dir",), ("train", "seed")}
"""Settings in which the runs of one method may differ."""
_SEED = re.compile(r"[-_ .]*seed[-_ ]?[0-9]+", re.IGNORECASE)


@dataclass(frozen=True)
class Method:
    """Runs that differ in nothing but the seed, or one evaluated model."""

    name: str
    kind: str
    """One of KINDS; empty if it is none of them or not known."""
    runs: tuple[Run, ...]
    slot: int = 0

    @property
    def config(self) -> dict[str, Any]:
        return self.runs[0].config

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is an evaluated moment of a training, not its result."""
        return all(re.search(r"/checkpoint-[0-9]+$", run.origin) for run in self.runs)

    @property
    def title(self) -> str:
        """Its name, with what it is unless the name says so."""
        name, kind = self.name.casefold(), self.kind.casefold()
        return self.name if kind in name or name in kind or kind == "base" else f"{self.name} ({self.kind})"


def find_methods(runs: Sequence[Run]) -> list[Method]:
    """Return the methods in the order of their first runs, and give each run its method's slot."""
    groups: defaultdict[tuple[str, int], list[Run]] = defaultdict(list)
    met: Counter[tuple[str, str]] = Counter()
    for n, run in enumerate(runs):
        key, seed = _key(run, n), repr(run.setting("train", "seed")) if run.config else run.name
        groups[key, met[key, seed]].append(run)  # a second run with the same seed is another method
        met[key, seed] += 1
    methods = []
    for members in groups.values():
        members.sort(key=lambda run: number(run.setting("train", "seed")) or 0.0)
        methods.append(Method(_name(members), _kind(members[0]), tuple(members)))
    methods = _distinct(_one_base(methods))
    owners: dict[str, Method] = {}
    for method in sorted(methods, key=lambda method: method.name != method.kind):
        owners.setdefault(method.kind, method)  # the one that is named like its kind, or else the first
    taken = Slots(owners)
    methods = [replace(m, slot=taken.of(m.kind if owners[m.kind] is m else "")) for m in methods]
    for method in methods:
        for run in method.runs:
            run.slot = method.slot
    return methods


class Slots:
    """Slots in the order in which they are asked for; the first of a kind gets its own, others what is free."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._reserved = {KINDS[kind] for kind in kinds if kind in KINDS} | {0}
        self._taken: set[int] = set()

    def keep(self, slot: int) -> None:
        """Take a slot that is given already."""
        self._taken.add(slot)

    def of(self, kind: str) -> int:
        """Return the next slot of a kind."""
        own = KINDS.get(kind)
        free = (slot for slot in range(1, 10_000) if slot not in self._taken and slot not in self._reserved)
        slot = own if own is not None and own not in self._taken else next(free)
        self._taken.add(slot)
        return slot


def kind_of(name: str) -> str:
    """Return which method a published row or curve is: `OPASD`, `Token + Attention (OPASD)`; empty for another."""
    word = re.sub(r".*\((\w+)\)$", r"\1", name.strip()).casefold()
    return next((kind for kind in KINDS if kind.casefold() == word), "")


def seed_groups(methods: Sequence[Method]) -> list[Method]:
    """Return the methods that were trained with several seeds."""
    return [method for method in methods if method.config and sum(bool(run.steps) for run in method.runs) > 1]


def flat(config: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the leaves of nested mappings by their paths."""
    if isinstance(config, dict) and config:
        return {inner: leaf for key, value in config.items() for inner, leaf in flat(value, (*path, str(key))).items()}
    return {path: config}


def settings_of(method: Method) -> dict[tuple[str, ...], Any]:
    """Return what makes the method: its configuration without the names and the seed."""
    return {path: value for path, value in flat(method.config).items() if path not in IDENTITY}


def _key(run: Run, number: int) -> str:
    """Return a text that the runs of one method share; a run without a configuration is known by its name alone."""
    if not run.config:
        plain = _SEED.sub("", run.name)
        return f"{plain}, one of several" if plain and plain != run.name else f"{number}"
    settings = {path: value for path, value in flat(run.config).items() if path not in IDENTITY}
    return repr(sorted(settings.items(), key=repr))


def _kind(run: Run) -> str:
    return run.method or ("base" if run.state == "evaluated" and not run.origin else "")


def _name(members: Sequence[Run]) -> str:
    """Return the names' common beginning without the seed; the kind's own spelling if that is what it says."""
    names = [run.name for run in members]
    plain = list(dict.fromkeys(_SEED.sub("", name) for name in names))
    if len({name.rpartition("/")[2] for name in plain}) == 1 and plain[0]:
        common = max(plain, key=len)  # a folder stands before a name that two runs share
    else:
        common = shared_start(names).rstrip("-_. /0123456789(") or names[0] if len(names) > 1 else names[0]
    return kind if (kind := _kind(members[0])).casefold() == common.casefold() else common


def _one_base(methods: Sequence[Method]) -> list[Method]:
    """Return the methods with the base called so, if there is one and others are to be compared with it."""
    bases = [method for method in methods if method.kind == "base"]
    called = len(bases) == 1 < len(methods)
    return [replace(method, name="base") if called and method is bases[0] else method for method in methods]


def _distinct(methods: Sequence[Method]) -> list[Method]:
    """Return the methods with names of their own: an equal one with what differs, its run's, or a number."""
    for rename in (_by_settings, lambda same, n: same[n].runs[0].name, lambda same, n: f"{same[n].name} ({n + 1})"):
        groups: defaultdict[str, list[Method]] = defaultdict(list)
        for method in methods:
            groups[method.name].append(method)
        methods = [
            replace(method, name=rename(same, same.index(method))) if len(same) > 1 else method
            for method in methods
            for same in [groups[method.name]]
        ]
    return list(methods)


def _by_settings(same: Sequence[Method], n: int) -> str:
    """Return the name with the values of the one or two settings in which methods of one name differ."""
    settings = [settings_of(method) for method in same]
    paths = dict.fromkeys(path for own in settings for path in own)
    differing = [path for path in paths if len({repr(own.get(path)) for own in settings}) > 1]
    if not all(method.config for method in same) or not 0 < len(differing) <= 2:
        return same[n].name
    values = ", ".join(f"{path[-1]} {settings[n].get(path)}" for path in differing)
    return f"{same[n].name} ({values})"
