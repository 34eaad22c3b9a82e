"""docs/metrics.md has every metric that a run writes."""

import json
import re

import pytest

from tests.commands import opasd
from tests.docs.blocks import ROOT

SMALL = [
    *("--steps", "1", "--max-new-tokens", "16", "--train.per-device-train-batch-size", "2", "--data.sample", "8"),
    *("--validation.every", "1", "--validation.samples", "1", "--validation-data.lab.sample", "2"),
    *("--objective.token.clip", "pointwise", "--objective.token.impl", "chunked", "--attention-weight", "balanced"),
]


def documented(metric: str, names: set[str]) -> bool:
    """Tell whether the page has a metric: by its name, its last part (`/step`, `_max`) or its group (`flops/…`)."""
    group, _, last = re.sub(r"@\d+$", "@k", metric).partition("/")
    ends = {f"/{last.rpartition('/')[2]}", f"_{last.rpartition('_')[2]}"}
    return metric in names or f"{group}/…" in names or any(end in names for end in ends)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_metric_of_a_run_is_on_the_page(tmp_path):
    done = opasd(tmp_path, "train", "lab", "--name", "run", *SMALL)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    written = {name for row in rows for name in row} - {"step"}
    assert {"loss", "token/reversed", "attention/gradient_share"} <= written
    names = set(re.findall(r"`([^`]+)`", (ROOT / "docs/metrics.md").read_text("utf-8")))
    assert sorted(name for name in written if not documented(name, names)) == []
