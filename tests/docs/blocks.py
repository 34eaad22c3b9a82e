"""The code blocks of the pages: found, and run one after another in a folder of the page's own.

A page tells one story: its blocks share a folder and, in Python, their names. What a block is called says what happens:

- `bash`: each line runs; `opasd` in this process, with fewer steps and problems and with the embedded model in place of
  one that would be downloaded (`SMALLER`);
- `python`: runs, with the same exchange of models;
- `yaml`, `json`, `csv` and others after a line `<!-- file: NAME -->` are written to that file;
- `text`: what something prints, or pseudocode; nothing happens.

`<!-- not run: REASON -->` in front of a block says why it cannot run here; its `opasd` lines must still be understood.
`<!-- slow -->` leaves it to `make test-docs`.
"""

import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import nursery, processes
from tests.commands import opasd

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "README.md",
        "docs/index.md",
        "docs/start.md",
        "docs/method-example.md",
        "docs/tutorials/*.md",
        "docs/howto/*.md",
        "docs/coming-from/*.md",
    )
    for path in ROOT.glob(pattern)
)
BLOCK = re.compile(
    r"(?P<marks>(?:<!--[^>]*-->\s*\n)*)^(?P<indent> *)```(?P<kind>[\w-]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
REASONS = ("needs weights", "needs a GPU", "needs the network", "needs servers", "needs a cluster", "needs a package")
FEW = ["--data.sample", "8"]
BATCH = ["--train.per-device-train-batch-size", "2", "--train.gradient-accumulation-steps", "1"]
SMALLER = {
    "train": ["--model", "lab", *BATCH, "--steps", "2", "--max-new-tokens", "8", "--validation.every", "0", *FEW],
    "probe": ["--model", "lab", "--problems", "4", "--samples", "2", "--max-new-tokens", "12"],
    "prompt": ["--model", "lab"],
    "evaluate": ["--problems", "2", "--samples", "2", "--max-new-tokens", "12"],
    "attend": ["--max-new-tokens", "8"],
    "sweep": ["--train.max-steps", "2", "--evaluate.problems", "2", "--evaluate.max-new-tokens", "12"],
}
"""What is added to a command, so that it takes seconds."""
PAPER = ("aime24", "aime25", "aime26", "hmmt25")
HUB_MODEL = re.compile(r"\bQwen/Qwen[\w.-]+")
PLAIN = ("cat", "ls", "head", "tail", "wc", "mkdir", "cp", "echo", "cd", "test", "grep", "until")


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: str
    line: int
    kind: str
    text: str
    marks: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """Why it does not run."""
        return next((mark.removeprefix("not run:").strip() for mark in self.marks if mark.startswith("not run:")), None)

    @property
    def file(self) -> str | None:
        """The file that it is written to."""
        return next((mark.removeprefix("file:").strip() for mark in self.marks if mark.startswith("file:")), None)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = (ROOT / page).read_text("utf-8")
    found = []
    for match in BLOCK.finditer(text):
        marks = tuple(part.strip() for part in re.findall(r"<!--(.*?)-->", match["marks"]))
        code = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(page, text.count("\n", 0, match.start("kind")) + 1, match["kind"], code, marks))
    return found


def lines(code: str) -> list[str]:
    """Return the commands of a shell block: continued lines as one, no comments."""
    whole = re.sub(r"\\\n\s*", "", code).splitlines()
    return [
        line for line in (re.sub(r"\s+# .*$", "", one).strip() for one in whole) if line and not line.startswith("#")
    ]


class Story:
    """The folder and the names of one page while its blocks run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}

    def run(self, block: Block) -> None:
        """Do what a block says; an AssertionError names its page and line."""
        if block.file:
            (self.folder / block.file).write_text(block.text, "utf-8")
        elif block.reason:
            self.check_only(block)
        elif block.kind == "bash":
            for line in lines(block.text):
                self.shell(line, block)
        elif block.kind == "python":
            small = re.sub(r"max_steps=\d+", "max_steps=1, gradient_accumulation_steps=2, use_cpu=True", block.text)
            small = small.replace("OPASDConfig(objective", 'OPASDConfig(rollout={"max_new_tokens": 8}, objective')
            exec(compile(HUB_MODEL.sub("lab", small), str(block), "exec"), self.names)

    def shell(self, line: str, block: Block) -> None:
        """Run one command; it must end with 0, or with what `<!-- exits: N -->` says."""
        first, *rest = shlex.split(line)
        wanted = next((int(mark.removeprefix("exits:")) for mark in block.marks if mark.startswith("exits:")), 0)
        if first == "opasd" and not re.search(r"[|<>;&$]", re.sub(r"'[^']*'", "", line)):
            words = [HUB_MODEL.sub("lab", found) for word in rest for found in self.expanded(word)]
            if words[:1] == ["train"] and words[1].startswith(
                "opasd-"
            ):  # the paper's recipes validate on the hub's sets
                words += [part for name in PAPER for part in (f"--validation-data.{name}", "null")]
            as_it_is = {"--resume", "--list", "--power", "--dry-run", "--print-commands", "--table"} & {*words}
            done = opasd(self.folder, *words, *([] if as_it_is else SMALLER.get(words[0], [])))
        else:
            assert first in (*PLAIN, "opasd"), f"{block}: {first} is not run by the tests; say why: <!-- not run: … -->"
            python = f'"{sys.executable}" -m tests.nursery "{nursery.address()}"'
            script = f'opasd() {{ {python} -m opasd.cli "$@"; }}; {line}'
            done = processes.run(["bash", "-ec", script], cwd=self.folder)
        assert done.returncode == wanted, f"{block}: {line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    def expanded(self, word: str) -> list[str]:
        """Return what a shell makes of a word with a star at its end."""
        found = (
            sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word)) if word.endswith("*") else []
        )
        return found or [word]

    def check_only(self, block: Block) -> None:
        """Have the lines of a block that cannot run read: recipes, flags, files, extras and targets must be there."""
        for line in lines(block.text) if block.kind == "bash" else []:
            words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
            if words[0] == "accelerate":
                config = ROOT / words[words.index("--config_file") + 1]
                assert config.is_file(), f"{block}: {config.name} is not there"
                words = ["opasd", *words[words.index("opasd.cli") + 1 :]]
            if words[0] == "opasd":
                self.read(words[1:], line, block)
            elif words[0] == "pip":
                extras = re.findall(r"\[(.*?)\]", " ".join(words))
                known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert set(extras) <= known.keys(), f"{block}: {line}: there are {', '.join(known)}"
            elif words[0] == "make":
                known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
                assert words[1] in known, f"{block}: {line}: there are {', '.join(known)}"
            else:
                assert words[:2] == ["vllm", "serve"], f"{block}: {words[0]} is nothing that the tests know"

    def read(self, words: list[str], line: str, block: Block) -> None:
        """Have a command line read by one that starts nothing; what this machine lacks is no mistake of the page."""
        if "mine.jsonl" in words:
            rows = (f'{{"problem": "{n} + 0?", "solution": "It is {n}.", "answer": "{n}"}}\n' for n in range(64))
            (self.folder / "mine.jsonl").write_text("".join(rows))
        if words[0] == "train":
            if "--num-processes" in words:
                at = words.index("--num-processes")
                del words[at : at + 2]
            done = opasd(self.folder, "validate", *words[1:])
        else:
            assert words[0] == "sweep", f"{block}: {line}: the tests cannot read this without running it"
            done = opasd(self.folder, *words, "--dry-run")
        told = (done.stdout + done.stderr).partition("error: ")[2].removeprefix("this cannot run:").strip()
        missing = re.fullmatch(r".* needs \w+; pip install .*|.* there are \d+ GPUs here; .*", told)
        assert done.returncode == 0 or missing, f"{block}: {line}\n{told or done.stdout + done.stderr}"
