"""Manifests of sounds: NeMo, plain and in archives, folders of Kaldi, cuts and Shar of lhotse."""

import gzip
import io
import json
import pickle
import tarfile

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import audio

RATE = 8000
SOUNDS = [np.arange(n * 100, n * 100 + 8000, dtype=np.int16).reshape(-1, 1) for n in range(6)]


def sound(number):
    return audio.write_wav(SOUNDS[number], RATE, "PCM_16")


def heard(reader, row):
    return audio.decode(bytes(reader.read([row])["audio"][0]), dtype="int16")


def lines(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def archive(path, members):
    with tarfile.open(path, "w") as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wavs").mkdir()
    for number in range(6):
        (tmp_path / f"wavs/{number}.wav").write_bytes(sound(number))
    return tmp_path


def line(number, **more):
    return {"audio_filepath": f"wavs/{number}.wav", "duration": 1.0, "text": f"words {number}", **more}


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_nemo(folder, suffix):
    path = lines(folder / f"train{suffix}", map(line, range(6)))
    with bp.open(path) as reader:
        assert reader.format == "nemo"
        assert list(reader.schema) == ["audio", "duration", "text"]
        assert [sample["text"] for sample in reader.select(["text"])] == [f"words {n}" for n in range(6)]
        assert bytes(reader.read([4])["audio"][0]) == sound(4)
        assert reader.spans("audio", [2]).files[0].endswith("wavs/2.wav")
        assert pickle.loads(pickle.dumps(reader)).where(1).endswith("wavs/1.wav")
    with bp.open(path, format="json") as reader:
        assert isinstance(reader.schema["audio_filepath"], bp.Text)


def test_nemo_windows(folder):
    rows = [line(0, offset=0.25) | {"duration": 0.5}, line(1, offset=0.5), line(2)]
    with bp.open(lines(folder / "train.json", rows)) as reader:
        for row, part in enumerate((SOUNDS[0][2000:6000], SOUNDS[1][4000:], SOUNDS[2])):
            assert (heard(reader, row) == part).all()
    far = [line(0, offset=1e308), line(0, offset=0.5) | {"duration": 1e308}]
    with bp.open(lines(folder / "far.json", far)) as reader:
        assert [len(heard(reader, row)) for row in range(2)] == [0, 4000]
        assert len(reader.read([])["audio"]) == 0
    path = lines(folder / "bad.json", [line(0, offset=-1.0)])
    with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="no part of a sound"):
        reader[0]


def test_nemo_follows_no_path_out(folder):
    path = lines(folder / "inner/train.json", [line(0) | {"audio_filepath": "../wavs/0.wav"}])
    with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="does not lie in"):
        reader[0]
    with bp.open(path, outside=True) as reader:
        assert bytes(reader.read([0])["audio"][0]) == sound(0)


def tarred(folder, *, sharded):
    """What NeMo's converter writes: two shards, and their manifest or manifests."""
    shards = []
    for shard in range(2):
        names = [f"data_wavs_{number}.wav" for number in range(3 * shard, 3 * shard + 3)]
        archive(folder / f"audio_{shard}.tar", {name: sound(3 * shard + n) for n, name in enumerate(names)})
        shards.append([
            {"audio_filepath": name, "duration": 1.0, "text": f"words {name}", "shard_id": shard}
            for name in reversed(names)
        ])  # fmt: skip
    if not sharded:
        return lines(folder / "tarred_audio_manifest.json", [row for rows in shards for row in rows])
    for shard, rows in enumerate(shards):
        lines(folder / f"sharded_manifests/manifest_{shard}.json", rows)
    return folder / "sharded_manifests/manifest__OP_0..1_CL_.json"


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_nemo_in_archives(tmp_path, sharded, named):
    path = tarred(tmp_path, sharded=sharded)
    options = {"tars": str(tmp_path / "audio__OP_0..1_CL_.tar")} if named else {}
    with bp.open(path, format="nemo", **options) as reader:
        assert [bytes(cell) for cell in reader.read(range(6))["audio"]] == [
            sound(number) for number in (2, 1, 0, 5, 4, 3)
        ]
        spans = reader.spans("audio", [5])
        assert [spans.files[number] for number in spans.file.tolist()] == [str(tmp_path / "audio_1.tar")]
    loader = bp.Loader(bp.open(path, format="nemo", **options), 2, order="random", seed=3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch["text"] for batch in batches]
    again = bp.Loader(bp.open(path, format="nemo", **options), 2, order="random", seed=3)
    again.load_state_dict(state)
    assert [list(batch["text"]) for batch in again] == [list(texts) for texts in rest]


def test_nemo_parts_of_members(tmp_path):
    archive(tmp_path / "audio_0.tar", {"a_b.wav": sound(0)})
    rows = [
        {"audio_filepath": name, "duration": 0.5, "offset": offset, "shard_id": 0}
        for name, offset in (("a_b.wav", 0.0), ("a_b-sub1.wav", 0.5), ("c.wav", 0.0))
    ]
    with bp.open(lines(tmp_path / "tarred_audio_manifest.json", rows)) as reader:
        assert (heard(reader, 0) == SOUNDS[0][:4000]).all()
        assert (heard(reader, 1) == SOUNDS[0][4000:]).all()
        with pytest.raises(bp.DamagedError, match="no member of the name") as caught:
            reader[2]
        assert caught.value.sample == 2
    (tmp_path / "audio_0.tar").unlink()
    archive(tmp_path / "audio_1.tar", {})
    with pytest.raises(bp.NotFoundError, match="no archive of shard 0"):
        bp.open(tmp_path / "tarred_audio_manifest.json")


# -- Kaldi --------------------------------------------------------------------------------------------------


def kaldi(folder, *, segments=True, scp="a wavs/0.wav\nb wavs/1.wav\n"):
    (folder / "wav.scp").write_text(scp)
    names = ("u1", "u2", "u3") if segments else ("a", "b")
    if segments:
        (folder / "segments").write_text("u1 a 0.25 0.75\nu2 b 0.5 -1\nu3 a 0 0.125\n")
    (folder / "text").write_text("".join(f"{name} some words\tof {name}\n" for name in names[:2]))
    (folder / "utt2spk").write_text("".join(f"{name} speaker-{name}\n" for name in names))
    return folder


def test_kaldi(folder):
    with bp.open(kaldi(folder)) as reader:
        assert reader.format == "kaldi"
        assert reader.schema["audio"] == bp.Audio("wav")
        assert [sample["speaker"] for sample in reader] == ["speaker-u1", "speaker-u2", "speaker-u3"]
        assert [sample["text"] for sample in reader] == ["some words of u1", "some words of u2", None]
        for row, part in enumerate((SOUNDS[0][2000:6000], SOUNDS[1][4000:], SOUNDS[0][:1000])):
            assert (heard(reader, row) == part).all()
        assert reader.by_key("u2")["speaker"] == "speaker-u2"
        assert pickle.loads(pickle.dumps(reader))[0]["id"] == "u1"


def test_kaldi_without_segments(folder):
    with bp.open(kaldi(folder, segments=False)) as reader:
        assert [bytes(cell) for cell in reader.read([0, 1])["audio"]] == [sound(0), sound(1)]
        assert reader.spans("audio", [1]).files[0].endswith("wavs/1.wav")
    assert bp.verify(folder).ok


def test_kaldi_root(folder):
    data = folder / "data"
    data.mkdir()
    with bp.open(kaldi(data, segments=False), root=str(folder)) as reader:
        assert bytes(reader.read([1])["audio"][0]) == sound(1)


@pytest.mark.parametrize("entry", ["touch ran |", "| cat > ran", "-"])
def test_commands_are_never_run(folder, entry, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(bp.UnsafeError, match="command") as caught:
        bp.open(kaldi(folder, scp=f"a wavs/0.wav\nb {entry}\n"))
    assert str(caught.value.path).endswith("wav.scp")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "segment", ["u1 nobody 0 1", "u1 a 1 0", "u1 a x 1", "u1 a nan 1", "u1 a", "u1 a 0 inf"]
)
def test_damaged_segments(folder, segment):
    kaldi(folder)
    (folder / "segments").write_text(f"u0 a 0 1\n{segment}\n")
    with pytest.raises(bp.DamagedError, match="line 2"):
        bp.open(folder)


def test_files_in_another_order(folder):
    kaldi(folder)
    (folder / "text").write_bytes(b"u2   two words \r\nu1\tone\r\nnobody x\r\nu3\r\n")
    with bp.open(folder) as reader:
        assert [sample["text"] for sample in reader] == ["one", "two words", ""]
    (folder / "text").write_text("u1 a\nu1 b\n")
    with pytest.raises(bp.DamagedError, match="two lines"):
        bp.open(folder)
    (folder / "text").write_bytes(b"")
    with bp.open(folder) as reader:
        assert [sample["text"] for sample in reader] == [None] * 3
    for name in ("segments", "wav.scp"):
        (folder / name).write_bytes(b"")
    (folder / "utt2spk").write_bytes(b"\n")
    with bp.open(folder) as reader:
        assert len(reader) == 0


# -- lhotse -------------------------------------------------------------------------------------------------


def cut(number, start=0.0, duration=1.0, **more):
    """A cut as lhotse writes it."""
    source = {"type": "file", "channels": [0], "source": f"wavs/{number}.wav"}
    output = {
        "id": "s",
        "recording_id": "r",
        "start": 0,
        "duration": 1.0,
        "channel": 0,
        "text": f"words {number}",
    }
    recording = {"id": "r", "sources": [source], "sampling_rate": RATE, "num_samples": 8000, "duration": 1.0}
    return {
        "id": f"speaker/{number}.cut", "start": start, "duration": duration, "channel": 0,
        "supervisions": [output, {**output, "text": "more", "speaker": "A", "language": "en"}],
        "recording": recording, "type": "MonoCut", **more,
    }  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_cuts_of_lhotse(folder, suffix):
    path = lines(folder / "cuts.jsonl", [cut(0), cut(1, 0.25, 0.5), cut(2, 0.5, 0.5)])
    if suffix.endswith(".gz"):
        path.with_suffix(suffix).write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    with bp.open(folder / f"cuts{suffix}") as reader:
        assert reader.format == "lhotse"
        assert [sample["text"] for sample in reader] == [f"words {number} more" for number in range(3)]
        assert (reader[1]["speaker"], reader[1]["language"]) == ("A", "en")
        assert [sample["text"] for sample in reader[0]["supervisions"]] == ["words 0", "more"]
        assert bytes(reader.read([0])["audio"][0]) == sound(0)
        assert reader.spans("audio", [0]).files[0].endswith("wavs/0.wav")
        assert reader.spans("audio", [0, 1]) is None
        assert (heard(reader, 1) == SOUNDS[1][2000:6000]).all()
        assert (heard(reader, 2) == SOUNDS[2][4000:]).all()
        assert reader.by_key("speaker/1.cut")["start"] == 0.25
        assert pickle.loads(pickle.dumps(reader))[2]["duration"] == 0.5
    with bp.open(folder) as reader:
        assert reader.format == "lhotse"


def test_one_channel_of_a_cut(folder):
    both = np.hstack([SOUNDS[0], SOUNDS[1]])
    (folder / "wavs/0.wav").write_bytes(audio.write_wav(both, RATE, "PCM_16"))
    stereo = cut(0, channel=1)
    stereo["recording"]["sources"][0]["channels"] = [0, 1]
    many = {**stereo, "type": "MultiCut", "channel": [0, 1]}
    with bp.open(lines(folder / "cuts.jsonl", [stereo, many])) as reader:
        assert (heard(reader, 0) == SOUNDS[1]).all()
        assert (heard(reader, 1) == both).all()


def test_cuts_that_are_not_read(folder):
    command, memory, lost = cut(0), cut(0), cut(0)
    command["recording"]["sources"][0] |= {"type": "command", "source": "touch ran"}
    memory["recording"]["sources"][0] |= {"type": "memory", "source": "AAAA"}
    lost["recording"]["sources"][0]["source"] = "../0.wav"
    mixed = {"id": "m", "tracks": [{"cut": cut(0), "offset": 0}], "type": "MixedCut"}
    path = lines(folder / "cuts.jsonl", [command, memory, mixed, cut(0, -1.0), lost, cut(1)])
    reasons = ["command", "one file", "MixedCut", "no part of a recording", "does not lie in"]
    with bp.open(path) as reader:
        for row, reason in enumerate(reasons):
            with pytest.raises((bp.DamagedError, bp.UnsafeError), match=reason) as caught:
                reader[row]
            assert caught.value.sample == row
        assert bytes(reader.read([5])["audio"][0]) == sound(1)
    assert not (folder / "ran").exists()


def shar(folder, *, without=None):
    """Two shards as lhotse's SharWriter lays them out; a cut may be without its recording."""
    for shard, numbers in enumerate(((0, 1, 2), (3, 4))):
        rows, members = [], {}
        for number in numbers:
            row = cut(number)
            row["recording"]["sources"][0] |= {"type": "shar", "source": ""}
            rows.append(row)
            data, manifest = (".nodata", ".nometa") if number == without else (".wav", ".json")
            members[row["id"] + data] = b"" if number == without else sound(number)
            members[row["id"] + manifest] = (
                b"" if number == without else json.dumps(row["recording"]).encode()
            )
        packed = lines(folder / "cuts.jsonl", rows)
        (folder / f"cuts.00000{shard}.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
        packed.unlink()
        archive(folder / f"recording.00000{shard}.tar", members)
    return folder


def test_shar(tmp_path):
    with bp.open(shar(tmp_path)) as reader:
        assert reader.format == "lhotse"
        assert [bytes(cell) for cell in reader.read(range(5))["audio"]] == [sound(n) for n in range(5)]
        spans = reader.spans("audio", [4])
        assert spans.files[spans.file[0]] == str(tmp_path / "recording.000001.tar")
        assert reader[3]["text"] == "words 3 more"
    with bp.open(tmp_path / "cuts.000001.jsonl.gz") as reader:
        assert [bytes(cell) for cell in reader.read([0, 1])["audio"]] == [sound(3), sound(4)]
    assert bp.verify(tmp_path).ok
    bp.convert(tmp_path, tmp_path / "out.beton")
    assert bytes(bp.open(tmp_path / "out.beton").read([4])["audio"][0]) == sound(4)
    (tmp_path / "recording.000001.tar").unlink()
    with pytest.raises(bp.NotFoundError, match="no such archive"):
        bp.open(tmp_path)


def test_shar_without_a_recording(tmp_path):
    with bp.open(shar(tmp_path, without=1)) as reader:
        assert reader.schema["audio"].optional
        assert [sample["audio"] is None for sample in reader] == [False, True, False, False, False]


def test_resume_in_shar(tmp_path):
    def loader():
        return bp.Loader(bp.open(shared), 2, order="random", seed=1)

    shared = shar(tmp_path)
    batches = iter(first := loader())
    next(batches)
    state = first.state_dict()
    rest = [list(batch["id"]) for batch in batches]
    (again := loader()).load_state_dict(state)
    assert [list(batch["id"]) for batch in again] == rest


@pytest.mark.reference
def test_what_lhotse_writes(folder):
    lhotse = pytest.importorskip("lhotse")
    cuts = lhotse.CutSet.from_cuts(
        lhotse.Recording.from_file(folder / f"wavs/{n}.wav", recording_id=f"a.{n}").to_cut() for n in range(5)
    )
    cuts = cuts.cut_into_windows(0.5).to_eager()
    cuts.to_file(folder / "cuts.jsonl.gz")
    (folder / "shar").mkdir()
    cuts.to_shar(folder / "shar", fields={"recording": "wav"}, shard_size=4)
    for path in (folder / "cuts.jsonl.gz", folder / "shar"):
        with bp.open(path) as reader:
            assert [sample["id"] for sample in reader] == [item.id for item in cuts]
            for row, cut in enumerate(cuts):
                assert np.array_equal(heard(reader, row).T, np.rint(cut.load_audio() * 32768))
