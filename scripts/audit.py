"""Compare the pinned packages with the database of known vulnerabilities (`make audit`); needs the network.

python -m scripts.audit

Exit code 1: a package has one. Exit code 2: packages could not be looked up; the last line says why.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = ROOT / "constraints.txt"


def verdict(output: str, errors: str) -> tuple[int, str]:
    """Return the exit code and what to say, from what pip-audit wrote."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        reason = lines[-1][:200] if lines else "pip-audit said nothing"
        return 2, f"audit: nothing could be looked up ({reason}); run it where PyPI can be read"
    known = [
        f"{package['name']} {package['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", ())
    ]
    away = [package["name"] for package in packages if "skip_reason" in package]
    if away:
        known.append(
            f"audit: {len(away)} of {len(packages)} packages could not be looked up ({', '.join(away[:3])}"
            f"{', …' * (len(away) > 3)}); run it where PyPI's pages of packages can be read"
        )
    return 2 if away else int(bool(known)), "\n".join(known) or f"audit: no known vulnerability in {len(packages)}"


def main() -> int:
    pinned = "".join(line for line in PINNED.read_text().splitlines(keepends=True) if "==" in line)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pinned)
        file.flush()
        words = ["--format", "json", "--progress-spinner", "off", "--no-deps", "--disable-pip", "--requirement"]
        command = [sys.executable, "-m", "pip_audit", *words, file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    code, said = verdict(done.stdout, done.stderr)
    sys.stderr.write(f"{said}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
