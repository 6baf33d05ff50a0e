"""Checks of an installed wheel, away from the checkout: ``make test-wheel`` runs this.

Only NumPy and rich are there. So the native core decodes the images below, and what needs another library
must say which one.
"""

from __future__ import annotations

import base64
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

import numpy as np

import batchplant as bp

# Images of 8 × 6 pixels, without loss: red grows to the right, green downwards, blue is 90.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAGCAIAAABxZ0isAAAAGElEQVR4nGNkYIiSY2DARCwM"
    "GgxYAT0kAOQgAgoJ7507AAAAAElFTkSuQmCC"
)
WEBP = "UklGRioAAABXRUJQVlA4TB4AAAAvB0ABALmM6H/sIqL/ASEBYY7/GyULxmO0YgKQWjY="
MAX_BYTES = 15_000_000
BUNDLED = ("libjpeg", "libdeflate", "libwebp")


def pixels() -> np.ndarray:
    image = np.full((6, 8, 3), 90, np.uint8)
    image[..., 0] = np.arange(8) * 30
    image[..., 1] = np.arange(6)[:, None] * 40
    return image


def check_size(package: pathlib.Path) -> None:
    """What is installed besides NumPy and rich is small, but for the bytecode that Python makes of it."""
    folders = (package, package.with_name("batchplant.libs"))
    sizes = {path: path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()}
    files = [path for path in sizes if path.suffix != ".pyc"]
    size = sum(sizes[path] for path in files)
    print(f"{len(files)} files, {size / 1e6:.1f} MB; {sum(sizes.values()) / 1e6:.1f} MB with bytecode")
    assert size <= MAX_BYTES, f"{size:,} bytes"


def check_libraries() -> None:
    """The libraries in this process's memory are those of the wheel, not the system's."""
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists():
        return
    mapped = {line.split()[-1] for line in maps.read_text().splitlines() if "/" in line}
    for library in BUNDLED:
        paths = [path for path in mapped if pathlib.Path(path).name.startswith(library)]
        assert paths, f"{library} is not loaded"
        assert all("batchplant.libs" in path for path in paths), f"{library} comes from {paths}"


def check_images(folder: pathlib.Path) -> None:
    """JPEG, PNG and WebP are decoded, from a folder and in batches."""
    for name, text in (("a.png", PNG), ("b.webp", WEBP)):
        target = folder / "photos" / "class" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(base64.b64decode(text))
    with bp.open(folder / "photos") as reader:
        for index in range(2):
            np.testing.assert_array_equal(reader[index]["image"], pixels())
    schema = {"image": bp.Image(), "label": bp.Int()}
    with bp.create(folder / "jpeg.beton", schema, image_format="jpeg") as writer:
        for label in range(20):
            writer.append({"image": np.kron(pixels(), np.ones((8, 8, 1), np.uint8)), "label": label})
    loader = bp.Loader(folder / "jpeg.beton", 5, order="random", seed=1)
    labels = np.concatenate([batch["label"] for batch in loader])
    assert sorted(labels) == list(range(20)), labels
    with bp.open(folder / "jpeg.beton") as reader:
        difference = np.abs(reader[0]["image"].astype(int)[4::8, 4::8] - pixels())
    assert difference.max() < 40, difference.max()


def check_commands(folder: pathlib.Path) -> None:
    """The command line converts, verifies and describes."""
    command = [str(pathlib.Path(sysconfig.get_path("scripts")) / "batchplant")]
    for line in ("convert jpeg.beton jpeg.tar", "verify jpeg.tar", "info jpeg.tar", "--version"):
        arguments = line.split()
        done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    assert bp.__version__ in done.stdout, done.stdout
    with bp.open(folder / "jpeg.tar") as reader:
        assert len(reader) == 20


def check_missing_extras(folder: pathlib.Path) -> None:
    """A format whose library is missing says what to install."""
    for suffix, extra in (("parquet", "arrow"), ("h5", "hdf5")):
        message = ""
        try:
            bp.convert(folder / "jpeg.beton", folder / f"out.{suffix}")
        except bp.BatchplantError as error:
            message = str(error)
        assert f"batchplant[{extra}]" in message, f"{suffix}: {message or 'no error'}"


def main() -> None:
    home = pathlib.Path(bp.__file__).resolve()
    assert pathlib.Path(sys.prefix).resolve() in home.parents, f"batchplant is imported from {home}"
    check_size(home.parent)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        check_images(folder)
        check_libraries()
        check_commands(folder)
        check_missing_extras(folder)
    print(f"batchplant {bp.__version__} from {home.parent}: all checks passed")


if __name__ == "__main__":
    main()
