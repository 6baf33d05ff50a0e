"""Converting: chosen samples and fields, and stopping at any time. (Format into format: test_matrix.py.)"""

import os
import signal
import sys

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.cli import main
from batchplant.codecs.media import image
from batchplant.data.writer import WriteOptions
from batchplant.formats.registry import create_with
from batchplant.jobs import engines
from batchplant.storage.limits import human_size
from batchplant.testing.cases import cells, jpeg, pixels, png


def save(path, schema, samples, **options):
    with bp.create(path, schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return path


def test_a_field_that_the_target_cannot_hold_is_named(tmp_path):
    source = save(tmp_path / "a.npz", {"n": bp.Int(), "text": bp.Text()}, [{"n": 1, "text": "x"}])
    with pytest.raises(bp.SchemaError, match=r"npy cannot hold text fields; leave 'text' out \(--fields\)"):
        bp.convert(source, tmp_path / "a.npy")
    with pytest.raises(bp.UnknownFormatError, match="give the name a suffix"):
        bp.convert(source, tmp_path / "folder")
    with pytest.raises(bp.SchemaError, match="exactly one image field"):
        bp.convert(source, tmp_path / "folder", target_options={"format": "imagefolder"})
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.fixture
def source(tmp_path):
    """100 samples of a number, its text and an image."""
    schema = {"image": bp.Image(), "n": bp.Int(), "text": bp.Text()}
    samples = [{"image": jpeg(8, 8 + n % 5), "n": n, "text": f"№ {n}"} for n in range(100)]
    return save(tmp_path / "source.npz", schema, samples)


def numbers(path, name="n"):
    with bp.open(path) as reader:
        return reader.read(range(len(reader)), [name])[name].tolist()


def test_choosing_fields_and_names(source, tmp_path):
    bp.convert(source, tmp_path / "a.beton", fields=["text", "n"], rename={"n": "zahl"})
    with bp.open(tmp_path / "a.beton") as reader:
        assert reader.schema == bp.Schema(text=bp.Text(), zahl=bp.Int())
        assert reader[7] == {"text": "№ 7", "zahl": 7}
    with pytest.raises(bp.FieldNameError, match="no field 'x'"):
        bp.convert(source, tmp_path / "b.npz", fields=["x"])
    with pytest.raises(bp.FieldNameError, match="no field 'n'"):
        bp.convert(source, tmp_path / "b.npz", fields=["text"], rename={"n": "x"})
    with pytest.raises(bp.SchemaError, match="two fields one name"):
        bp.convert(source, tmp_path / "b.npz", rename={"n": "text"})
    assert sorted(os.listdir(tmp_path)) == ["a.beton", "source.npz"]


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (99, 99), (100, 100), (1000, 100), (None, 100)])
def test_limit(source, limit, count, tmp_path):
    assert bp.convert(source, tmp_path / "a.npz", options=bp.ConvertOptions(limit=limit)).samples == count
    assert numbers(tmp_path / "a.npz") == list(range(count))


def test_a_limit_below_zero(source, tmp_path):
    with pytest.raises(bp.OptionError, match="limit must not be negative"):
        bp.convert(source, tmp_path / "a.npz", options=bp.ConvertOptions(limit=-1))


def test_shuffling_depends_on_the_seed_alone(source, tmp_path):
    def shuffled(name, **options):
        bp.convert(source, tmp_path / name, shuffle=True, options=bp.ConvertOptions(**options))
        return numbers(tmp_path / name)

    first = shuffled("a.npz", seed=3)
    assert first != list(range(100))
    assert sorted(first) == list(range(100))
    assert shuffled("b.beton", seed=3, workers=1) == first
    assert shuffled("c.npz", seed=4) != first
    assert shuffled("d.npz", seed=3, limit=10) == first[:10]


def test_a_reader_is_a_source_as_well(source, tmp_path):
    with bp.open(source) as reader:
        bp.convert(bp.concat([reader[90:], reader[:2]]), tmp_path / "a.npz")
    assert numbers(tmp_path / "a.npz") == [*range(90, 100), 0, 1]


def test_a_dataset_may_replace_itself(source):
    bp.convert(source, source, overwrite=True, shuffle=True)
    assert sorted(numbers(source)) == list(range(100))


def test_the_target_is_left_alone_unless_told(source, tmp_path):
    (tmp_path / "a.npz").write_text("mine")
    with pytest.raises(bp.ExistsError):
        bp.convert(source, tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "source.npz"]


def test_progress_reaches_the_end(source, tmp_path):
    seen = []
    bp.convert(source, tmp_path / "a.npz", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (100, 100)


def test_options_of_both_sides(source, tmp_path):
    bp.convert(
        source, tmp_path / "a.npz", source_options={"fields": ["n"]}, target_options={"compress": True}
    )
    with bp.open(tmp_path / "a.npz") as reader:
        assert list(reader.schema) == ["n"]
        assert reader.facts()["compressed"]


def test_images_are_converted_as_told(source, tmp_path):
    bp.convert(source, tmp_path / "a.beton", images=bp.ImageOptions(write_mode="raw", max_resolution=10))
    with bp.open(tmp_path / "a.beton") as reader:
        assert reader.read(range(100), ["image"])["image"].raw.all()
        assert {sample["image"].shape for sample in reader} == {
            (8, 8, 3),
            (8, 9, 3),
            (8, 10, 3),
            (7, 10, 3),
            (6, 10, 3),
        }


# --- what cannot be read or stored --------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path):
    """A folder of 60 images: 7 and 30 are missing, 8 and 50 are RGBA."""
    folder = tmp_path / "broken"
    folder.mkdir()
    lines = ["file_name,n"]
    for n in range(60):
        lines.append(f"{n}.png,{n}")
        if n not in (7, 30):
            (folder / f"{n}.png").write_bytes(png(4, 5, 4 if n in (8, 50) else 3))
    (folder / "metadata.csv").write_text("\n".join(lines))
    return folder


def test_a_sample_that_cannot_be_read_or_stored_stops_and_is_named(broken, tmp_path):
    with pytest.raises(bp.DamagedError, match=r"7\.png: No such file") as caught:
        bp.convert(broken, tmp_path / "a.npz")
    assert (caught.value.sample, caught.value.path) == (7, str(broken))
    with (
        bp.open(broken, mode="RGB") as reader,
        pytest.raises(bp.EncodeError, match="the image is RGBA") as caught,
    ):
        bp.convert(reader[8:30], tmp_path / "a.beton")
    assert caught.value.sample == 0
    assert os.listdir(tmp_path) == ["broken"]


@pytest.mark.parametrize("stop", [None, 1, 3])
def test_what_cannot_be_read_or_stored_is_skipped_and_listed(broken, stop, tmp_path):
    """Also when the conversion is stopped between."""
    tuning = bp.ConvertTuning(checkpoint_seconds=0, max_batch_rows=9)
    options = {"on_error": "skip", "source_options": {"mode": "RGB"}}
    options["options"] = bp.ConvertOptions(tuning=tuning)
    if stop is not None:
        with pytest.raises(KeyboardInterrupt):
            bp.convert(broken, tmp_path / "a.beton", progress=interrupt_at(stop), **options)
    result = bp.convert(broken, tmp_path / "a.beton", resume=True, **options)
    assert sorted(problem.sample for problem in result.skipped) == [7, 8, 30, 50]
    assert all(problem.path.startswith(str(broken)) for problem in result.skipped)
    assert result.samples == 56
    assert numbers(tmp_path / "a.beton") == [n for n in range(60) if n not in (7, 8, 30, 50)]


# --- stopping and going on ----------------------------------------------------------------------------


# Checkpoints after every batch.
OFTEN = bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0))


def interrupt_at(call):
    calls = []

    def progress(now, _):
        calls.append(now)
        if len(calls) == call:
            raise KeyboardInterrupt

    return progress


def test_stopped_before_the_first_checkpoint_nothing_is_left(source, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        bp.convert(source, tmp_path / "out" / "a.npz", progress=interrupt_at(1))
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("target", ["a.beton", "a.npz", "folder"])
@pytest.mark.parametrize("again", [1, 2])
def test_stopped_again_and_again(source, target, again, tmp_path):
    tuning = bp.ConvertTuning(checkpoint_seconds=0, max_batch_rows=10)
    out = tmp_path / "out"
    options = {"shuffle": True, "options": bp.ConvertOptions(seed=5, checksums=True, tuning=tuning)}
    bp.convert(source, tmp_path / target, **options)
    for _ in range(again):
        with pytest.raises(KeyboardInterrupt):
            bp.convert(source, out / target, resume=True, progress=interrupt_at(3), **options)
        assert os.listdir(out) == [f".{target}.partial"]
    result = bp.convert(source, out / target, resume=True, **options)
    assert result.resumed_at > 20 * again - 10
    assert sorted(os.listdir(out)) == sorted([target, f"{target}.crc"])
    assert bp.verify(out / target, against=tmp_path / target).problems == []
    assert (out / f"{target}.crc").read_bytes() == (tmp_path / f"{target}.crc").read_bytes()
    if target != "folder":
        assert (out / target).read_bytes() == (tmp_path / target).read_bytes()


def test_not_resuming_begins_anew(source, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        bp.convert(source, tmp_path / "a.npz", progress=interrupt_at(2), options=OFTEN)
    result = bp.convert(source, tmp_path / "a.npz", fields=["n"])
    assert (result.resumed_at, result.samples) == (0, 100)
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "source.npz"]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"fields": ["n"]}, "fields"),
        ({"shuffle": True}, "shuffle"),
        ({"options": bp.ConvertOptions(limit=5, seed=2)}, "limit, seed"),
        ({"images": bp.ImageOptions(write_mode="raw")}, "images"),
        ({"options": bp.ConvertOptions(checksums=True)}, "checksums"),
    ],
)
def test_resuming_needs_the_same_options(source, other, named, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        bp.convert(source, tmp_path / "a.npz", progress=interrupt_at(2), options=OFTEN)
    with pytest.raises(bp.OptionError, match=rf"had other options \({named}\)"):
        bp.convert(source, tmp_path / "a.npz", resume=True, **other)
    assert bp.convert(source, tmp_path / "a.npz", resume=True).resumed_at > 0


def test_nothing_to_resume_is_no_error(source, tmp_path):
    assert bp.convert(source, tmp_path / "a.npz", resume=True).resumed_at == 0


KILLED = """
import os, signal, sys
import batchplant as bp
tuning = bp.ConvertTuning(checkpoint_seconds=0, max_batch_rows=10)
calls = []
def progress(now, _):
    calls.append(now)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
bp.convert(sys.argv[1], sys.argv[2], progress=progress, options=bp.ConvertOptions(tuning=tuning))
"""


@pytest.mark.parametrize("target", ["a.beton", "a.npz", "folder"])
def test_a_killed_conversion_resumes(source, target, tmp_path):
    out = tmp_path / "out" / target
    done = processes.run([sys.executable, "-c", KILLED, str(source), str(out)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert os.listdir(out.parent) == [f".{target}.partial"]
    result = bp.convert(source, out, resume=True)
    assert 0 < result.resumed_at < 100
    assert os.listdir(out.parent) == [target]
    assert bp.verify(out, against=source).problems == []


def test_killed_while_it_finished(source, tmp_path):
    """The spools may have been moved already; then there is nothing to resume, and no error either."""
    out = tmp_path / "out" / "folder"
    with pytest.raises(KeyboardInterrupt):
        bp.convert(source, out, progress=interrupt_at(3), options=OFTEN)
    hidden = out.parent / ".folder.partial"
    os.replace(hidden / "metadata", hidden / "folder" / "metadata.jsonl")
    assert bp.convert(source, out, resume=True).resumed_at == 0
    assert bp.verify(out, against=source).problems == []


def test_batches_are_as_large_as_samples_are_small(tmp_path):
    options = bp.ConvertOptions(tuning=bp.ConvertTuning(batch_bytes=4096))
    samples = [{"x": np.full(1024, n, np.uint8)} for n in range(48)]
    source = save(tmp_path / "a.npy", {"x": bp.Tensor("uint8", (1024,))}, samples)
    seen = []
    bp.convert(source, tmp_path / "b.beton", progress=lambda done, _: seen.append(done), options=options)
    # Two batches are under way before the first tells how large samples are.
    assert seen == [16, 32, 36, 40, 44, 48]
    assert bp.verify(tmp_path / "b.beton", against=source).problems == []


def test_pixels_become_images_and_back_without_a_change(tmp_path):
    arrays = [{"image": pixels(4 + n % 3, 5, 3)} for n in range(10)]
    source = save(tmp_path / "raw.beton", {"image": bp.Image()}, arrays)
    bp.convert(source, tmp_path / "folder")
    assert {name.suffix for name in (tmp_path / "folder").glob("0*")} == {".png"}
    bp.convert(tmp_path / "folder", tmp_path / "again.beton")
    assert cells(bp.open(tmp_path / "again.beton")) == cells(bp.open(source))


# --- images that grow -----------------------------------------------------------------------------------


@pytest.fixture
def drawings(tmp_path):
    """A folder of 30 flat PNG images: little as files, 1.5 MB as pixels."""
    folder = tmp_path / "drawings"
    (folder / "a").mkdir(parents=True)
    for n in range(30):
        flat = np.full((128, 128, 3), 8 * n, np.uint8)
        (folder / "a" / f"{n:02}.png").write_bytes(image.encode(flat, "png"))
    return folder


def sizes(path):
    with bp.open(path) as reader:
        return sum(len(cell) for cell in cells(reader)["image"])


def test_images_that_grow_are_remarked_on(drawings, tmp_path, capsys):
    target = tmp_path / "a.beton"
    assert main(["convert", str(drawings), str(target), "--quiet"]) == 0
    note = (
        f"image: {human_size(sizes(drawings))} of images became 1.5 MB: beton stores images that are not "
        "JPEG as pixels; image_format='jpeg' (convert --image-format jpeg) makes them smaller with loss; "
        "a .tar or .parquet file keeps their encoding"
    )
    assert capsys.readouterr().out.splitlines()[1:] == [f"  note: {note}"]
    assert sizes(target) == 30 * 128 * 128 * 3
    # What the note advises helps, and who chooses the pixels need not be told.
    for name, images in [
        ("b.beton", bp.ImageOptions(image_format="jpeg")),
        ("c.beton", bp.ImageOptions(write_mode="raw")),
        ("d.tar", bp.ImageOptions()),
        ("e.parquet", bp.ImageOptions()),
    ]:
        assert bp.convert(drawings, tmp_path / name, images=images).remarks == [], name
    assert sizes(tmp_path / "d.tar") == sizes(drawings)
    # JPEG passes as it is, and so do pixels.
    assert bp.convert(tmp_path / "b.beton", tmp_path / "f.beton").remarks == []
    assert bp.convert(target, tmp_path / "g.beton").remarks == []


def test_few_bytes_more_are_not_remarked_on(drawings, tmp_path):
    assert bp.convert(drawings, tmp_path / "a.beton", options=bp.ConvertOptions(limit=20)).remarks == []


def test_one_remark_has_the_sums_of_all_shards_and_processes(drawings, tmp_path):
    how = {"rename": {"image": "image"}}
    whole = bp.convert(drawings, tmp_path / "a.beton", **how).remarks
    assert len(whole) == 1
    assert whole[0].startswith("image: ")
    assert bp.convert(drawings, tmp_path / "b.beton", shard_samples=8, **how).remarks == whole
    # One file that processes write in parts.
    two = engines.make("processes", workers=2)
    assert bp.convert(drawings, tmp_path / "c.beton", engine=two, **how).remarks == whole


def test_the_remark_counts_what_others_did_before(drawings, tmp_path):
    whole = bp.convert(drawings, tmp_path / "a.beton").remarks
    for rank in (1, 0):
        rank_engine = engines.make("ranks", rank=rank, world_size=2)
        last = bp.convert(drawings, tmp_path / "b.beton", shard_samples=10, engine=rank_engine)
    assert last.remarks == whole


def test_a_resumed_writer_counts_the_images_from_the_start(tmp_path):
    path, schema, write = str(tmp_path / "a.beton"), bp.Schema(image=bp.Image()), WriteOptions(resume=True)
    first = create_with(path, schema, write)
    first.append({"image": png(9, 9, 3)})
    first.checkpoint()
    first.suspend()
    with create_with(path, schema, write) as second:
        second.append({"image": png(9, 9, 3)})
    assert second.written == 2
    assert second.image_bytes == {"image": (2 * len(png(9, 9, 3)), 2 * 9 * 9 * 3)}
