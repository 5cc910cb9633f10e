"""`python -m benchmarks.gpu_bundle`: a folder below 60 MiB with what `python -m benchmarks.gpu` needs beside torch.

This code, and the wheels of what it imports: pure ones, and pydantic's core for the Pythons in `PYTHONS`. There is no
cache of kernels in it: no solver runs there, and none of the modules that are imported is compiled. `run.sh` unpacks
the wheels beside the code, those of its own Python only, and starts; nothing is installed and nothing is asked for.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ("benchmarks", "planner", "profiles", "solver_models")
WHEELS = (
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-extensions",
    "typing-inspection",
    "networkx",
    "pyyaml",
)
PYTHONS = ("3.11", "3.12", "3.13")
LIMIT_BYTES = 60 * 2**20

RUN = """\
#!/bin/sh
# python -m benchmarks.gpu with the wheels of this folder; arguments are handed on. Nothing is downloaded.
cd "$(dirname "$0")" || exit 2
PYTHON="${PYTHON:-python3}"
"$PYTHON" - <<'UNPACK' || exit 2
import glob, os, sys, zipfile
if not os.path.isdir("unpacked"):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-"
    for wheel in sorted(glob.glob("wheels/*.whl")):
        if tag in wheel or "-none-any" in wheel:
            zipfile.ZipFile(wheel).extractall("unpacking")
    os.rename("unpacking", "unpacked")
UNPACK
PYTHONPATH="$PWD/code:$PWD/unpacked" exec "$PYTHON" -m benchmarks.gpu "$@"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if the folder is too large."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_bundle", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "out" / "gpu-bundle")
    target = parser.parse_args(arguments).output
    shutil.rmtree(target, ignore_errors=True)
    make_bundle(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {size / 2**20:.1f} MiB")
    return 0 if size <= LIMIT_BYTES else 1


def make_bundle(target: Path) -> None:
    """Code, wheels and `run.sh`; raises CalledProcessError if a wheel cannot be had."""
    wheels = target / "wheels"
    wheels.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "samples", "workloads")
    for name in CODE:
        shutil.copytree(ROOT / name, target / "code" / name, ignore=ignored)
    for version in PYTHONS:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        where = ["--only-binary", ":all:", "--python-version", version, "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *where, "--dest", str(wheels), *WHEELS], check=True, stdout=subprocess.DEVNULL)
    (target / "run.sh").write_text(RUN, encoding="utf-8")
    os.chmod(target / "run.sh", 0o755)


if __name__ == "__main__":
    sys.exit(main())
