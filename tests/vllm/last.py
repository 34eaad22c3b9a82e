"""When the tests with vLLM last passed, and whether what they test has changed since.

python tests/vllm/last.py                  say it
python tests/vllm/last.py RESULTS.xml      note it, from pytest's --junitxml
"""

import datetime
import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("last.json")
TESTED = (
    "src/opasd/rollout/**/*.py",
    "src/opasd/trainer/**/*.py",
    "src/opasd/cli/train.py",
    "tests/vllm/*.py",
    "constraints-vllm.txt",
)


def digest(root: Path = ROOT) -> str:
    """Return a digest of the files that these tests are about."""
    paths = sorted(path for pattern in TESTED for path in root.glob(pattern))
    content = b"".join(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0" for path in paths)
    return hashlib.sha256(content).hexdigest()


def note(results: Path, record: Path = RECORD) -> None:
    """Write the record of a run in which nothing failed."""
    suite = ElementTree.parse(results).getroot()[0]
    total, skipped, *bad = (int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors"))
    if any(bad) or total == skipped:
        sys.exit(f"{results}: {total} tests, {skipped} skipped, {sum(bad)} failed; nothing is noted")
    versions = {name: version(name) for name in ("vllm", "torch", "transformers")}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    values = {"date": today, "passed": total - skipped, "versions": versions, "digest": digest()}
    record.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def said(record: Path = RECORD, root: Path = ROOT) -> str:
    """Return when they last passed, in one line."""
    if not record.exists():
        return "tests with vLLM: no run is on record; make test-vllm"
    values = json.loads(record.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {number}" for name, number in values["versions"].items())
    line = f"tests with vLLM: {values['passed']} passed on {values['date']} ({versions})"
    if values["digest"] == digest(root):
        return f"{line}; what they test has not changed since"
    return f"{line}; what they test HAS CHANGED since: make test-vllm"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        note(Path(sys.argv[1]))
    sys.stdout.write(f"{said()}\n")
