"""No tracked file holds what looks like a secret."""

import re
import subprocess

import pytest

from tests.processes import ROOT

SECRETS = {
    "a key of Hugging Face": r"\bhf_[A-Za-z0-9]{30,}",
    "a key of OpenAI or Anthropic": r"\bsk-[A-Za-z0-9_-]{24,}",
    "a token of GitHub": r"\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{40,}",
    "a key of AWS": r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b",
    "a key of Google": r"\bAIza[A-Za-z0-9_-]{35}",
    "a token of Slack": r"\bxox[abprs]-[A-Za-z0-9-]{20,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----",
    "a key of Weights & Biases": r"WANDB_API_KEY\s*[=:]\s*['\"]?[0-9a-f]{40}",
    "a name and password in an address": r"https?://[A-Za-z0-9._-]+:[^@\s/{}<>'\"$]{6,}@[A-Za-z0-9.-]+\.[a-z]{2,}",
}
PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern in SECRETS.values()).encode())


@pytest.mark.parametrize(
    "text",
    ["hf_" + "a1B2" * 9, "sk-" + "proj-" + "x9" * 15, "ghp_" + "Z" * 36, "AKIA" + "ABCDEFGH12345678",
     "-----BEGIN RSA " + "PRIVATE KEY-----", "https://me:" + "secret1@host.org/x"],
)  # fmt: skip
def test_a_secret_would_be_found(text):
    assert PATTERN.search(text.encode())


def test_no_tracked_file_holds_a_secret():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 20 << 20:
            match = PATTERN.search(path.read_bytes())
            found += [f"{name}: {match[0][:12]!r}"] if match else []
    assert not found
