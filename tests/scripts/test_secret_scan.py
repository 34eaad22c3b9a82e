"""The scan for secrets finds what it should, in files that are tracked or could be, and shows no secret itself."""

import subprocess

import pytest

from scripts.secret_scan import KINDS, ROOT, found_in, scan

SECRETS = {
    "Hugging Face": "hf_" + "a1B2" * 9,
    "OpenAI": "sk-" + "proj-" + "x9" * 15,
    "Stripe": "sk_" + "live_" + "x9" * 15,
    "GitHub": "ghp_" + "Z" * 36,
    "GitLab": "glpat-" + "x9" * 10,
    "PyPI": "pypi-" + "AgEI" + "x9" * 20,
    "AWS": "AKIA" + "ABCDEFGH12345678",
    "secret key of AWS": "aws_secret_access_key = " + "aB3/" * 10,
    "Google": "AIza" + "x9_-a" * 7,
    "npm": "npm_" + "x9" * 18,
    "Groq": "gsk_" + "x9" * 26,
    "SendGrid": "SG." + "x9" * 11 + "." + "x9" * 21,
    "Slack": "xoxb-" + "12345-" * 5,
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "Weights": "WANDB_API_KEY=" + "0123456789abcdef" * 2 + "01234567",
    "signed token": ".".join(["eyJ" + "hbGciOiJIUzI1NiJ9a", "eyJ" + "zdWIiOiIxMjM0NTY3", "SflKxwRJSMeKKF2QT4f"]),
    "name and password": "https://me:" + "secret1@host.org/x",
    "a name and password": "postgres://me:" + "secret1@host.org/x",
}


@pytest.mark.parametrize(("kind", "text"), SECRETS.items())
def test_a_secret_is_found_and_not_shown(kind, text):
    said = found_in(f"first line\nx = '{text}'\n".encode())
    assert said
    assert kind in said
    assert said.endswith("line 2")
    assert text not in said


def test_every_kind_is_tried():
    assert len(SECRETS) >= len(KINDS)


@pytest.mark.parametrize(
    "text", ["task-relevant_words-that-are-long-and-plain", "hf_hub", "http://localhost:8000", "sha256:" + "0a" * 32]
)
def test_other_text_is_not(text):
    assert found_in(text.encode()) is None


def test_tracked_and_new_files_are_scanned(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("ignored\n")
    for name in ("ignored", "new", "plain"):
        (tmp_path / name).write_text("nothing" if name == "plain" else SECRETS["Hugging Face"])
    assert scan(tmp_path) == ["new: a key of Hugging Face in line 1"]


def test_no_file_of_the_project_holds_one():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    assert not scan(ROOT)
