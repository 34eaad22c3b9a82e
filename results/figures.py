"""Make the figures of docs/evidence from the records beside this file, by `opasd report`, with plain names.

python results/figures.py                # writes docs/figures
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "figures"
NAMES = {
    "opasd-paper-pointwise": "OPASD, pointwise",
    "opsd-paper-per-token": "OPSD, per token",
    "opasd-paper": "OPASD, per token",
    "opsd-paper": "OPSD, pointwise",
    "opasd-problem": "no template",
    "opsd-pointwise": "OPSD, pointwise",
    "attention": "attention alone",
    "Difference from the base": "Arithmetic, 0.5B: difference from the base",
    "opsd-live": "OPSD, itself",
    **{
        f"{kind}-ema-{decay}": f"{kind.upper()}, {decay}"
        for kind in ("opsd", "opasd")
        for decay in ("0.9", "0.97", "0.99")
        if (kind, decay) != ("opsd", "0.97")  # not run
    },
}
FIGURES = {
    ("arithmetic/objectives", "objectives"): {"forest": "arithmetic", "leaks": "leaks"},
    ("arithmetic/long", "long"): {"response-length": "length-by-clip", "rollout-accuracy": "accuracy-by-clip"},
    ("lab/moving", "moving"): {"rollout-accuracy": "moving-teacher"},
}


def main() -> None:
    """Unpack, report and rename; a name that no figure has any more is a mistake."""
    unused = set(NAMES)
    for (archive, sweep), wanted in FIGURES.items():
        with tempfile.TemporaryDirectory() as folder:
            records, page = Path(folder) / "records", Path(folder) / "page"
            run = [sys.executable, str(HERE / "pack.py"), "unpack", str(HERE / f"{archive}.tar.xz"), str(records)]
            subprocess.run(run, check=True)
            report = [sys.executable, "-m", "opasd", "report", str(records / sweep), "--output", str(page)]
            subprocess.run(report, check=True)
            for name, new in wanted.items():
                text = (page / "figures" / f"{name}.svg").read_text("utf-8")
                unused -= {old for old in NAMES if f">{old}</text>" in text}
                for old, plain in NAMES.items():
                    text = text.replace(f">{old}</text>", f">{plain}</text>")
                paper = '<rect width="100%" height="100%" fill="#fff"/>'  # readable on a dark page
                (DOCS / f"{new}.svg").write_text(text.replace("</style>", f"</style>{paper}", 1), "utf-8")
    if unused:
        sys.exit(f"no figure has {', '.join(sorted(unused))}; put NAMES right")


if __name__ == "__main__":
    main()
