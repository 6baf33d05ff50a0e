"""Write small images of every encoding into a folder, for the fuzzers to start from."""

import io
import struct
import sys
import tarfile
import zlib
from pathlib import Path

import msgpack
import numpy as np
from PIL import Image

import batchplant as bp
from batchplant.storage import side_car

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


def jpegs(folder: Path) -> None:
    """Several MCUs on each side, of every kind that our own decoder knows."""
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((71, 54))
    for kind in range(3):
        for quality, options in ((95, {"restart_marker_blocks": 3}), (60, {"optimize": True}), (30, {})):
            image.save(folder / f"{kind}-{quality}.jpg", quality=quality, subsampling=kind, **options)
    image.convert("L").save(folder / "gray.jpg")


def pngs(folder: Path) -> None:
    """Every kind of pixel, interlaced and not, all filters, several parts, transparent colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rng = np.random.default_rng(1)
    width, height, adam7 = 11, 9, ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                                   (1, 0, 2, 2), (0, 1, 1, 2))  # fmt: skip
    for colour, depths in ((0, (1, 2, 4, 8, 16)), (2, (8,)), (3, (1, 2, 4, 8)), (4, (8,)), (6, (8,))):
        for bits in depths:
            for lace in (0, 1):
                rows = b""
                for x0, y0, dx, dy in adam7 if lace else ((0, 0, 1, 1),):
                    size = (len(range(x0, width, dx)) * bits * (1, 0, 3, 1, 2, 0, 4)[colour] + 7) // 8
                    for number in range(len(range(y0, height, dy)) if size else 0):
                        rows += bytes([number % 5]) + rng.integers(0, 9, size, dtype=np.uint8).tobytes()
                packed = zlib.compress(rows)
                parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, lace))]
                parts += [chunk(b"PLTE", bytes(n % 251 for n in range(3 << bits)))] if colour == 3 else []
                parts += [chunk(b"tRNS", b"\0\5" * (1, 0, 3, 4)[colour])] if colour < 4 and lace else []
                parts += [chunk(b"IDAT", packed[:20]), chunk(b"IDAT", packed[20:]), chunk(b"IEND", b"")]
                (folder / f"{colour}-{bits}-{lace}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def msgpack_streams(folder: Path) -> None:
    """Maps as we write them, arrays in both ways, and what others write."""
    kinds = {
        "image": bp.Image(),
        "number": bp.Int(),
        "text": bp.Text(optional=True),
        "array": bp.Tensor("uint8", (None, None, 3)),
    }
    for way in ("ext", "msgpack-numpy"):
        path = folder / f"{way}.msgpack"
        with bp.create(path, kinds, overwrite=True, numpy=way) as out:
            for n, number in enumerate((-5, 300, 2**40)):
                image, array = np.full((2, 3, 3), n, np.uint8), np.zeros((n, 2, 3), np.uint8)
                out.append({"image": image, "number": number, "text": "x" * n or None, "array": array})
        side_car(path, "{name}.schema.json").unlink()
    others = {"a": [1, None, True, 1.5, {"b": []}], "number": -3, "text": b"xy", 1: msgpack.Timestamp(1, 2)}
    (folder / "others.msgpack").write_bytes(b"".join(map(msgpack.packb, ([others], 1.5, -(2**40)))))


def recordio_files(folder: Path) -> None:
    """Whole and split records, and image records."""
    magic = (0xCED7230A).to_bytes(4, "little")
    with bp.create(folder / "raw.rec", {"data": bp.Bytes()}, overwrite=True) as out:
        for data in (b"", b"abc", magic, b"1234" + magic + magic + b"5", b"x" + magic):
            out.append({"data": data})
    kinds = {"image": bp.Image(), "label": bp.Tensor("float32", (None,))}
    with bp.create(folder / "image.rec", kinds, overwrite=True) as out:
        for count in (1, 3):
            out.append({"image": np.zeros((2, 3, 3), np.uint8), "label": np.ones(count, np.float32)})


def datums(folder: Path) -> None:
    """Caffe's messages: bytes, and floats packed and one by one."""
    raw = b"\x08\x03\x10\x02\x18\x02\x22\x0cabcdefghijkl\x28\x05\x38\x00"
    real = b"\x08\x01\x10\x01\x18\x03\x35\0\0\x80\x3f\x32\x08\0\0\x80\x3f\0\0\0\0\x28" + b"\xff" * 9 + b"\x01"
    (folder / "raw.datum").write_bytes(raw)
    (folder / "real.datum").write_bytes(real)


def parquet_levels(folder: Path) -> None:
    """Lists of two levels, in a run and side by side; twenty values that are there; numbers of 5 bits."""
    repetition = b"\x07" + b"\x98\xaa\xa5\xaa\x9a\xaa"
    present = bytes([20 << 1, 5])
    (folder / "lists.levels").write_bytes(bytes([1, 4, 5, 4, len(repetition)]) + repetition + present)
    numbers = b"\x05" + bytes(range(5)) * 2 + b"\x08\x03"
    (folder / "numbers.levels").write_bytes(bytes([0, 0, 5, 3, 0]) + numbers)


def tar_archives(folder: Path) -> None:
    """Every kind of header: long names, folders and links, and our own note."""
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(folder / f"{kind}.tar", "w", format=kind) as out:
            for key in ("a", "folder/" * 18 + "b", "größe"):
                for ending, data in (("txt", b"text"), ("seg.cls", b"12"), ("JPG", b"")):
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(data)
                    out.addfile(member, io.BytesIO(data))
                member.type, member.linkname = tarfile.SYMTYPE, "x" * (120 * kind)
                out.addfile(member)
    with bp.create(folder / "own.tar", {"n": bp.Int(), "t": bp.Text()}, overwrite=True) as out:
        for n in range(3):
            out.append({"n": n, "t": "x" * n})


def tfrecord_files(folder: Path) -> None:
    """Files of records, and Examples and SequenceExamples by themselves."""
    kinds = {
        "image": bp.Bytes(),
        "n": bp.Int(optional=True),
        "ids": bp.Tensor("int64", (None,)),
        "x": bp.Float("float32"),
    }
    with bp.create(folder / "own.tfrecord", kinds, overwrite=True) as out:
        for n in range(4):
            ids = np.arange(n) * 10**n - 5
            out.append({"image": bytes(n), "n": n or None, "ids": ids, "x": n / 3})
    golden = Path(__file__).parent.parent / "tests" / "golden" / "tfrecord"
    for path in (folder / "own.tfrecord", golden / "sequence.tfrecord"):
        with bp.open(path, records="raw", schema={"data": "bytes"}) as reader:
            for n, sample in enumerate(reader):
                (folder / f"{path.stem}-{n}.example").write_bytes(sample["data"])
    side_car(folder / "own.tfrecord", "{name}.schema.json").unlink()


def text_files(folder: Path) -> None:
    """Rows with quotes, line ends and numbers of every kind; JSON as lines, an array and a stream."""
    rows = 'n,"a ""b""",c\r\n1,-2.5e3,"x,\n"\r\n,nan,""\n007,18446744073709551615,größe\n'
    (folder / "rows.csv").write_text(rows, "utf-8")
    records = [
        '{"a": 1, "t": "\\ud83c\\udf31\\n", "l": [[1, 2.5], [3, 4]], "o": {"k": [null, true]}}',
        '{"a": -3, "t": "größe", "l": [], "x": NaN, "o": "Zg=="}',
    ]
    (folder / "lines.jsonl").write_text("\n".join(records), "utf-8")
    (folder / "array.json").write_text(f"[{','.join(records)}, 12]\n", "utf-8")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    image = Image.radial_gradient("L").resize((24, 17))
    for number, (suffix, mode, options) in enumerate(VARIANTS):
        image.convert("RGB").convert(mode).save(folder / f"{number:02}.{suffix}", **options)
    jpegs(folder)
    pngs(folder)
    msgpack_streams(folder)
    recordio_files(folder)
    datums(folder)
    parquet_levels(folder)
    tar_archives(folder)
    tfrecord_files(folder)
    text_files(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
