"""Write small images of every encoding into a folder, for the fuzzers to start from."""

import sys
from pathlib import Path

from PIL import Image

VARIANTS = [
    ("jpg", "L", {}),
    ("jpg", "RGB", {}),
    ("jpg", "RGB", {"progressive": True}),
    ("jpg", "RGB", {"subsampling": 0, "restart_marker_blocks": 1}),
    ("jpg", "CMYK", {}),
    ("png", "1", {}),
    ("png", "RGBA", {}),
    ("png", "P", {}),
    ("webp", "RGB", {}),
    ("webp", "RGBA", {"lossless": True}),
    ("webp", "RGBA", {"lossless": False}),
    ("gif", "P", {}),
    ("bmp", "RGB", {}),
    ("tiff", "RGB", {}),
    ("tiff", "CMYK", {}),
]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    picture = Image.radial_gradient("L").resize((24, 17))
    for number, (suffix, mode, options) in enumerate(VARIANTS):
        picture.convert("RGB").convert(mode).save(folder / f"{number:02}.{suffix}", **options)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
