"""Write requirements.lock: every package of `.[dev]`, direct or not, with the version that pip chooses today.

The direct dependencies are pinned in pyproject.toml; change them there, then run `make lock`. pip resolves into nothing
(`--dry-run --ignore-installed`) and under its own settings, so the environment decides which index is asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Every package of instar[dev], direct or not. Written by `make lock` from pyproject.toml: change that, not this.
"""


def resolve() -> list[str]:
    """`name==version` of each package that `.[dev]` needs, without instar itself, in alphabetical order."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-build-isolation"]
    command += ["--use-pep517", "--quiet", "--report", "-", "--editable", f"{ROOT}[dev]"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    pins = (entry["metadata"] for entry in report["install"])
    return sorted(
        f"{pin['name'].lower().replace('_', '-')}=={pin['version']}" for pin in pins if pin["name"] != "instar"
    )


if __name__ == "__main__":
    lines = resolve()
    LOCK.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{LOCK.name}: {len(lines)} packages")
