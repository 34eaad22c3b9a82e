"""Fail if a tracked file holds what looks like a secret (`make check`).

python -m scripts.secret_scan [FOLDER]
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {
    "a key of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}",
    "a key of OpenAI, Anthropic or Stripe": r"\b[sr]k[-_](?:live_|ant-|proj-)?[A-Za-z0-9_-]{24,}",
    "a token of GitHub": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{40,}",
    "a token of GitLab": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "a token of PyPI": r"\bpypi-AgEI[A-Za-z0-9_-]{30,}",
    "a key of AWS": r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b",
    "a secret key of AWS": r"(?i:aws_secret_access_key)\W{1,6}[A-Za-z0-9/+]{40}",
    "a token of npm or a key of Groq": r"\bnpm_[A-Za-z0-9]{36}|\bgsk_[A-Za-z0-9]{40,}",
    "a key of SendGrid": r"\bSG\.[\w-]{20,}\.[\w-]{40,}",
    "a key of Google": r"\bAIza[A-Za-z0-9_-]{35}",
    "a token of Slack": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "a key of Weights & Biases": r"(?i:wandb_api_key|wandb login)\W{1,4}[0-9a-f]{40}",
    "a signed token": r"\beyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    "a name and password in an address": r"\b[a-z][a-z0-9+]+://[A-Za-z0-9._-]+:[^@\s/{}<>'\"$]{6,}@[A-Za-z0-9.-]+\.[a-z]{2,}",
}
"""What is looked for; a secret has letters and numbers in an order that no word or digest of this project has."""
_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in KINDS.values()).encode())
_LARGEST = 20 << 20


def found_in(content: bytes) -> str | None:
    """Return what kind of secret the content holds, and on which line; None if it holds none."""
    match = _PATTERN.search(content)
    if match is None:
        return None
    kind = next(kind for kind, pattern in KINDS.items() if re.fullmatch(pattern.encode(), match[0]))
    before = content.count(b"\n", 0, match.start())
    return f"{kind} in line {before + 1}"


def scan(folder: Path) -> list[str]:
    """Return a line for each file under git's eyes that holds a secret; also of new files that are not ignored."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=folder, capture_output=True, check=True)
    paths = (folder / name for name in listed.stdout.decode(errors="surrogateescape").split("\0") if name)
    files = (path for path in paths if path.is_file() and not path.is_symlink() and path.stat().st_size < _LARGEST)
    return [f"{path.relative_to(folder)}: {kind}" for path in files if (kind := found_in(path.read_bytes()))]


def main() -> int:
    """Scan, and say what was found."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    if not (folder / ".git").exists():
        sys.stdout.write("not a git checkout: no scan for secrets\n")
        return 0
    found = scan(folder)
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
