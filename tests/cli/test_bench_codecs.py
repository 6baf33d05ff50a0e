"""`batchplant bench codecs`: sizes that are true, losses that are true, damage named."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant import _native
from batchplant.cli import build_parser, main
from batchplant.cli.bench import codecs
from batchplant.cli.bench.codecs import difference
from batchplant.codecs.media import image
from batchplant.testing.cases import EXHAUSTIVE

PIL = pytest.importorskip("PIL.Image")

EXACT = ["raw", "PNG", "WebP lossless"]
QUICK = ["--rounds", "1", "--qualities", "60,90", "--quiet"]
LOSSY = ["JPEG 60", "JPEG 90", "WebP 60", "WebP 90"]
if codecs.pillow_has("avif"):
    LOSSY += ["AVIF 60", "AVIF 90"]
COUNT = 10


def scene(number: int, height: int = 48, width: int = 64, channels: int = 3) -> Any:
    """Smooth, with a little noise: what lossy codecs are made for."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width] / 16
    waves = [np.sin(x * rng.uniform(0.3, 2) + y * rng.uniform(0.3, 2)) for _ in range(channels)]
    noisy = np.stack(waves, axis=-1) * 90 + 128 + rng.normal(0, 3, (height, width, channels))
    return image.squeeze(np.clip(noisy, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codecs") / "photos"
    for number in range(COUNT):
        (path / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        PIL.fromarray(scene(number)).save(path / "ab"[number % 2] / f"{number}.png")
    return path


def run_json(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> dict[str, Any]:
    assert main(["bench", "codecs", *map(str, argv), *QUICK, "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_help_shows_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "codecs", "--help"])
    assert stopped.value.code == 0
    assert "batchplant bench codecs" in capsys.readouterr().out.partition("examples:")[2]
    lines = re.findall(r"^  batchplant (.*)$", codecs.__doc__ or "", re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        build_parser().parse_args(line.split())


def test_json_has_true_sizes_and_losses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, folder)
    assert (result["images"], result["samples"], result["stored as"]) == (COUNT, COUNT, {"png": COUNT})
    assert result["megapixels"] == pytest.approx(COUNT * 48 * 64 / 1e6)
    each = result["formats"]
    assert list(each) == ["as stored", *EXACT, *LOSSY]
    sizes = [path.stat().st_size for path in folder.rglob("*.png")]
    assert each["as stored"]["bytes per image"] == pytest.approx(np.mean(sizes))
    assert each["as stored"]["encode"] is None
    assert each["raw"]["bytes per image"] == 48 * 64 * 3
    assert each["raw"]["bits per pixel"] == pytest.approx(24)
    assert each["raw"]["of stored"] == pytest.approx(48 * 64 * 3 / np.mean(sizes))
    for name in ("as stored", *EXACT):
        assert each[name]["lossless"]
        assert each[name]["PSNR"] is None
        assert each[name]["largest error"] == 0
    # What Pillow says of the same images, independently.
    psnr, bytes_of = [], []
    for path in folder.rglob("*.png"):
        pixels = np.asarray(PIL.open(path))
        cell = image.encode(pixels, "jpeg", quality=60)
        bytes_of.append(len(cell))
        error = np.asarray(PIL.open(io.BytesIO(cell))).astype(float) - pixels
        psnr.append(10 * math.log10(255**2 / np.mean(error**2)))
    assert each["JPEG 60"]["bytes per image"] == pytest.approx(np.mean(bytes_of))
    assert each["JPEG 60"]["PSNR"]["median"] == pytest.approx(np.median(psnr), abs=0.2)
    assert each["JPEG 60"]["PSNR"]["worst"] == pytest.approx(min(psnr), abs=0.2)
    for family in ("JPEG", "WebP"):
        low, high = each[f"{family} 60"], each[f"{family} 90"]
        assert not low["lossless"]
        assert low["bytes per image"] < high["bytes per image"]
        assert low["PSNR"]["median"] < high["PSNR"]["median"]
        assert low["largest error"] >= high["largest error"] > 0
    for name, value in each.items():
        for part in ("decode",) if name == "as stored" else ("encode", "decode"):
            speed = value[part]
            assert speed["images/s, best"] >= speed["images/s, median"] > 0
            assert speed["megapixels/s, best"] == pytest.approx(speed["images/s, best"] * 48 * 64 / 1e6)


def test_text_and_advice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "codecs", str(folder), *QUICK]) == 0
    text = capsys.readouterr().out
    assert f"{COUNT} of {COUNT} images ({COUNT} png)" in text
    for name in ("as stored", *EXACT, *LOSSY):
        assert len(re.findall(rf"^{re.escape(name)} ", text, re.MULTILINE)) == 2
    assert "advice: smallest that loses nothing: " in text
    # Sizes are the same everywhere; speeds may need a column more.
    sizes = text.partition("one core")[0]
    assert max(map(len, sizes.splitlines()[2:])) <= 80


def one(size: float, speed: float, psnr: float | None = None, lossless: bool = True) -> dict[str, Any]:
    return {
        "bytes per image": size, "lossless": lossless, "decode": {"megapixels/s, median": speed},
        "PSNR": None if psnr is None else {"median": psnr},
    }  # fmt: skip


def test_advice_follows_the_numbers() -> None:
    formats = {
        "as stored": one(1000, 5), "raw": one(3000, 100), "WebP lossless": one(700, 4),
        "JPEG 95": one(350, 20, 42.0, False), "JPEG 70": one(100, 25, 31.0, False),
    }  # fmt: skip
    output = codecs.advise({"formats": formats, "stored as": {"png": 3}})
    assert output == [
        "smallest that loses nothing: WebP lossless, 700 B an image; with a loss that is hard to see "
        "(42 dB): JPEG 95, 0.50 of that; fastest to decode: raw, 25.0 times as fast and 4.3 times as large"
    ]
    del formats["WebP lossless"], formats["raw"]
    formats["JPEG 95"] = one(990, 20, 42.0, False)
    formats["as stored"] = one(1000, 30)
    assert codecs.advise({"formats": formats, "stored as": {"jpeg": 2, "png": 1}}) == [
        "smallest that loses nothing: as stored (jpeg and png), 1.0 kB an image"
    ]
    # Neither the Loader nor convert knows it.
    formats["AVIF 75"] = {**one(10, 90, 50.0, False), "encoding": "avif"}
    assert "AVIF" not in codecs.advise({"formats": formats, "stored as": {"jpeg": 2}})[0]
    formats["PNG, 64 px"] = {**one(300, 1), "max resolution": 64}
    assert codecs.advise({"formats": formats, "stored as": {"jpeg": 2}})[0] == (
        "at 64 px: smallest that loses nothing: PNG, 300 B an image"
    )


def test_resolutions_are_an_axis(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--limit", 3, "--max-resolution", "32,16,full"]
    if EXHAUSTIVE and importlib.util.find_spec("matplotlib"):
        options += ["--figure", tmp_path / "c.svg"]
    each = run_json(capsys, folder, *options)["formats"]
    sizes = {None: (48, 64), 32: (24, 32), 16: (12, 16)}
    for size, (height, width) in sizes.items():
        more = f", {size} px" if size else ""
        assert {name + more for name in (*EXACT, *LOSSY)} <= set(each)
        raw = each[f"raw{more}"]
        assert (raw["max resolution"], raw["bytes per image"]) == (size, height * width * 3)
        assert raw["bytes of ImageNet"] == 1_281_167 * height * width * 3
        assert raw["bytes of dataset"] == COUNT * height * width * 3
        assert raw["bits per pixel"] == pytest.approx(24)
        for name in LOSSY:
            assert 0 < each[name + more]["SSIM"]["worst"] <= each[name + more]["SSIM"]["median"] < 1
        assert each[f"PNG{more}"]["SSIM"] is None
    # Only those that were asked for.
    assert set(run_json(capsys, folder, "--limit", 1, "--max-resolution", "16")["formats"]) == {
        "as stored", *(f"{name}, 16 px" for name in (*EXACT, *LOSSY))
    }  # fmt: skip
    argv = ["bench", "codecs", str(folder), *QUICK, "--limit", "2", "--max-resolution", "16,full"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert text.count("at most 16 px") == text.count("full size") == 2
    assert "ImageNet: 1.28 million images like these; yours: 10" in text
    # Sizes are the same everywhere; speeds may need a column more.
    sizes = text.partition("one core")[0]
    assert max(map(len, sizes.splitlines()[2:])) <= 80


def test_ssim_is_what_its_definition_says() -> None:
    one, two = scene(0), scene(1)
    assert codecs.ssim(one, one) == pytest.approx(1)
    assert codecs.ssim(one, two) == pytest.approx(codecs.ssim(two, one))
    assert codecs.ssim(one, two) < 0.5
    # Window by window, as the formula stands in the paper.
    gray = [each @ np.array([0.299, 0.587, 0.114]) for each in (one, two)]
    result = []
    for top in range(0, 48 - 7, 4):
        for left in range(0, 64 - 7, 4):
            x, y = (each[top : top + 8, left : left + 8].ravel() for each in gray)
            c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
            both = np.cov(x, y, bias=True)
            high = (2 * x.mean() * y.mean() + c1) * (2 * both[0, 1] + c2)
            result.append(high / ((x.mean() ** 2 + y.mean() ** 2 + c1) * (both[0, 0] + both[1, 1] + c2)))
    assert codecs.ssim(one, two) == pytest.approx(np.mean(result))
    # Smaller than a window, gray, and of 16 bits.
    assert codecs.ssim(one[:3, :5], one[:3, :5]) == pytest.approx(1)
    deep = scene(2, channels=1).astype(np.uint16) << 8
    assert codecs.ssim(deep, deep ^ 0x0F00) < 1


def test_what_pillow_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "pillow_has", lambda encoding: encoding == "jxl")
    names = [candidate.name for candidate in codecs.candidates([50], mask=False)]
    assert names == [*EXACT, "JPEG 50", "WebP 50", "JPEG XL 50"]
    assert not codecs.pillow_has("nosuch")


def test_images_are_taken_from_the_whole_dataset(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    load = codecs.load

    def noted(reader: Any, field: str, row: int, **options: Any) -> Any:
        rows.append(row)
        return load(reader, field, row, **options)

    monkeypatch.setattr(codecs, "load", noted)
    assert run_json(capsys, folder, "--limit", 4)["images"] == 4
    assert rows == [0, 3, 6, 9]


def test_time_is_bounded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, folder, "--seconds", 1e-9)["images"] == 1


def test_raw_images_and_any_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.beton"
    with bp.create(path, {"label": bp.Int(), "photo": bp.Image()}, write_mode="raw") as out:
        for number in range(4):
            out.append({"label": number, "photo": scene(number)})
    result = run_json(capsys, path)
    assert (result["field"], result["stored as"]) == ("photo", {"raw": 4})
    assert result["formats"]["as stored"]["bytes per image"] == 48 * 64 * 3


def test_a_mask_is_never_stored_with_loss(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = codecs.candidates([70, 90], mask=True)
    assert [kind.name for kind in kinds] == EXACT
    assert all(kind.lossless for kind in kinds)
    with bp.open(folder) as reader:
        schema = bp.Schema({**reader.schema, "image": bp.Image(mask=True)})
        kind = type(reader)
    init = kind.__init__

    def masked(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.schema = schema

    monkeypatch.setattr(kind, "__init__", masked)
    assert list(run_json(capsys, folder)["formats"]) == ["as stored", *EXACT]


@pytest.mark.parametrize(("channels", "left_out"), [(1, []), (4, ["JPEG 60", "JPEG 90"])])
def test_gray_and_alpha(
    channels: int, left_out: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        PIL.fromarray(scene(number, channels=channels)).save(tmp_path / f"{number}.png")
    result = run_json(capsys, tmp_path)
    assert list(result["left out"]) == left_out
    assert list(result["formats"]) == [name for name in ("as stored", *EXACT, *LOSSY) if name not in left_out]
    for name in EXACT:
        assert result["formats"][name]["lossless"], name
    assert result["formats"]["raw"]["bits per pixel"] == 8 * channels
    assert result["skipped"] == []
    if left_out:
        assert "RGBA" in result["left out"]["JPEG 60"]
        assert main(["bench", "codecs", str(tmp_path), *QUICK]) == 0
        assert "left out: JPEG 60: JPEG cannot hold RGBA" in capsys.readouterr().out
        result = run_json(capsys, tmp_path, "--to-rgb")
        assert result["left out"] == {}
        assert result["formats"]["raw"]["bits per pixel"] == 24


def test_an_opaque_alpha_is_no_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = scene(0, channels=4)
    pixels[:, :, 3] = 255
    PIL.fromarray(pixels).save(tmp_path / "a.png")
    result = run_json(capsys, tmp_path)
    assert all(result["formats"][name]["lossless"] for name in EXACT)


def test_sixteen_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = (scene(0, channels=1).astype(np.uint16) << 8) + 77
    PIL.fromarray(deep).save(tmp_path / "a.png")
    result = run_json(capsys, tmp_path)
    assert list(result["formats"]) == ["as stored", "PNG"]
    assert result["formats"]["PNG"]["lossless"]
    assert set(result["left out"]) == {"raw", "WebP lossless", *LOSSY}
    assert list(run_json(capsys, tmp_path, "--to-rgb")["left out"]) == []


def test_damaged_images_are_skipped_counted_and_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        content = path.read_bytes()
        (tmp_path / f"{number}.png").write_bytes(content[: len(content) // 2] if number == 3 else content)
    (tmp_path / "zero.png").write_bytes(b"")
    result = run_json(capsys, tmp_path, code=1)
    assert result["images"] == COUNT - 1
    assert [(problem["sample"], problem["field"]) for problem in result["skipped"]] == [
        (3, "image"), (COUNT, "image")
    ]  # fmt: skip
    assert main(["bench", "codecs", str(tmp_path), *QUICK]) == 1
    text = capsys.readouterr().out
    assert text.count("skipped: ") == 2
    assert "3.png" in text
    assert "advice" in text


def test_nothing_but_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    assert main(["bench", "codecs", str(tmp_path), *QUICK]) == 1
    assert "not one image could be decoded" in capsys.readouterr().err


def test_a_lying_header_allocates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = io.BytesIO()
    PIL.fromarray(scene(0)).save(out, "PNG")
    content = bytearray(out.getvalue())
    content[16:24] = (2**30).to_bytes(4, "big") * 2
    cell = np.frombuffer(bytes(content), np.uint8)
    with pytest.raises(bp.DataError):
        codecs.watch(codecs.decoder(_native.Engine(1), cell, None), 1)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3), np.uint8)),
        (np.full((2, 2, 4), 255, np.uint8), np.full((2, 2, 3), 255, np.uint8)),
        (np.full((2, 2, 2), 9, np.uint8), np.full((2, 2, 4), 9, np.uint8)),
    ],
)
def test_the_same_image_with_other_channels(left: Any, right: Any) -> None:
    assert difference(left, right) == (math.inf, 0)


def test_difference() -> None:
    zero = np.zeros((4, 4, 3), np.uint8)
    assert difference(zero, zero + 255) == (0.0, 255)
    assert difference(zero + 255, zero) == (0.0, 255)
    some = zero.copy()
    some[0, 0, 0] = 10
    assert difference(zero, some) == (pytest.approx(10 * math.log10(255**2 / (100 / 48))), 10)
    deep = np.zeros((4, 4), np.uint16)
    assert difference(deep, deep + 65535) == (0.0, 65535)
    clear = np.zeros((2, 2, 4), np.uint8)
    assert difference(clear, np.zeros((2, 2, 3), np.uint8))[1] == 255
    with pytest.raises(bp.DataError, match="decodes to"):
        difference(zero, zero[:2])


@pytest.mark.parametrize("suffix", ["png", pytest.param("svg", marks=pytest.mark.exhaustive)])
def test_figure(suffix: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"c.{suffix}"
    argv = ["bench", "codecs", str(folder), "--figure", str(target), "--limit", "2", *QUICK]
    assert main(argv) == 0
    assert f"wrote {target}" in capsys.readouterr().out
    assert target.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_flat_images_lose_nothing_and_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    PIL.fromarray(np.full((32, 32, 3), 128, np.uint8)).save(tmp_path / "a.png")
    result = run_json(capsys, tmp_path, "--figure", tmp_path / "c.svg")
    assert result["formats"]["JPEG 90"]["PSNR"] is None
    assert not result["formats"]["JPEG 90"]["lossless"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--limit 0", "--limit"),
        ("--rounds 0", "--rounds"),
        ("--seconds 0", "--seconds"),
        ("--seconds nan", "--seconds"),
        ("--qualities 0,50", "--qualities"),
        ("--qualities 101", "--qualities"),
        ("--qualities good", "--qualities"),
        ("--max-resolution 0,64", "--max-resolution"),
        ("--max-resolution small", "--max-resolution"),
        ("--field label", "no image field"),
        ("--field nosuch", "nosuch"),
        ("--figure x.jpg", ".png, .svg"),
    ],
)
def test_wrong_use(options: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "codecs", str(folder), *QUICK, *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 4), np.float32))
    assert main(["bench", "codecs", str(tmp_path / "x.npy")]) == 2
    assert "no image field" in capsys.readouterr().err
    with bp.create(tmp_path / "x.beton", {"image": bp.Image()}):
        pass
    assert main(["bench", "codecs", str(tmp_path / "x.beton")]) == 2
    assert "no images" in capsys.readouterr().err


def test_the_guide_is_true() -> None:
    text = (repository.ROOT / "docs" / "guides" / "choosing-a-codec.md").read_text("utf-8")
    for line in re.findall(r"^\$ batchplant (.*)$", text, re.MULTILINE):
        build_parser().parse_args(line.split())
    told = set(re.findall(r"^\| `(--[\w-]+)", text.partition("## Options")[2], re.MULTILINE))
    parser = argparse.ArgumentParser()
    codecs.add_args(parser)
    have = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    assert told - {"--json"} == have - {"--help", "--format", "--option", "--quiet", "--skip", "--where"}
