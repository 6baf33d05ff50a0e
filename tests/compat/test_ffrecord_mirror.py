"""batchplant.ffrecord: the interface of the original package."""

import json
import os
import pickle
import sys

import numpy as np
import pytest
from batchplant.ffrecord import FileReader, FileWriter

import batchplant as bp
import processes
import repository

GOLDEN = repository.GOLDEN / "ffrecord"
FFRECORD = os.environ.get("BATCHPLANT_FFRECORD_PYTHON")


def blob(number):
    return bytes((number + x * x) % 256 for x in range(number % 50))


def written(path, numbers):
    with FileWriter(path, len(numbers)) as writer:
        for number in numbers:
            writer.write_one(blob(number))
    return path


@pytest.fixture
def files(tmp_path):
    """100 samples in three files, the second without any."""
    parts = (range(70), [], range(70, 100))
    return [str(written(tmp_path / f"{number}.ffr", part)) for number, part in enumerate(parts)]


def found(arrays):
    assert all(
        isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 1 for array in arrays
    )
    return [array.tobytes() for array in arrays]


# --- reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("wanted", [[], [0], [99, 0], [3, 3, 70, 69, 71, 3], list(range(99, -1, -1))])
def test_samples_of_many_files(files, wanted, check):
    with FileReader(files, check_data=check) as reader:
        assert (reader.n, len(reader)) == (100, 100)
        assert found(reader.read(wanted)) == [blob(number) for number in wanted]
        assert found(reader.read(np.array(wanted, np.int32))) == [blob(number) for number in wanted]
        assert found(reader.read_one(number) for number in []) == []
        for number in wanted:
            assert found([reader.read_one(number)]) == [blob(number)]


def test_what_is_read_can_be_changed(files):
    with FileReader(files[0]) as reader:
        [one, two] = reader.read([40, 41])
        one[:] = 0
        assert found([two, reader.read_one(40)]) == [blob(41), blob(40)]


def test_more_than_4096_at_once(files):
    wanted = np.random.default_rng(0).integers(0, 100, 10_000).tolist()
    assert found(FileReader(files).read(wanted)) == [blob(number) for number in wanted]


def test_negative_numbers_count_from_the_end(files):
    reader = FileReader(files)
    assert found(reader.read([-1, -100, 5])) == [blob(99), blob(0), blob(5)]


@pytest.mark.parametrize("wrong", [100, -101, 2**40, -(2**63), 2**63 + 5])
def test_numbers_out_of_range(files, wrong):
    for names in (files, files[2]):
        with pytest.raises(IndexError, match=f"no sample {wrong}"):
            FileReader(names).read([0, wrong] if wrong < 2**63 else np.array([wrong], np.uint64))


@pytest.mark.parametrize("wrong", [3, [[1]], [1.5], "12", [None]])
def test_indices_are_a_list_of_integers(files, wrong):
    with pytest.raises(TypeError, match="list of integers"):
        FileReader(files).read(wrong)


def test_a_folder_is_its_files_in_order(files, tmp_path):
    reader = FileReader(tmp_path)
    assert reader.fnames == files
    assert found(reader.read([69, 70])) == [blob(69), blob(70)]


def test_names_that_lead_nowhere(tmp_path):
    with pytest.raises(bp.NotFoundError, match="at least one"):
        FileReader(tmp_path)
    with pytest.raises(FileNotFoundError):
        FileReader(tmp_path / "a.ffr")
    with pytest.raises(TypeError):
        FileReader(3)


def test_offsets_and_checksums(files):
    reader = FileReader(files)
    offsets, sums = reader.get_offsets(2), reader.get_checksums(2)
    assert offsets[0] == 12 + 12 * 30
    assert offsets[-1] == os.path.getsize(files[2])
    assert np.diff(offsets).tolist() == [len(blob(number)) for number in range(70, 100)]
    assert sums.tolist() == [bp._native.crc32(blob(number)) for number in range(70, 100)]
    assert len(reader.get_offsets(1)) == 1


def test_what_a_reader_checks(files):
    with open(files[2], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    reader = FileReader(files)
    reader.validate()
    assert found(reader.read([98])) == [blob(98)]
    with pytest.raises(bp.DamagedError, match="checksum") as caught:
        reader.read([5, 99, 3])
    assert (caught.value.path, caught.value.sample) == (files[2], 29)
    assert len(FileReader(files, check_data=False).read([99])[0]) == len(blob(99))
    with open(files[0], "r+b") as file:
        file.seek(14)
        file.write(b"\xff\xff")
    with pytest.raises(bp.DamagedError, match="header"):
        FileReader(files)
    with pytest.raises(bp.DamagedError, match="header"):
        FileReader(files, check_data=False).validate()


def test_a_closed_reader(files):
    reader = FileReader(files)
    reader.close()
    with pytest.raises(bp.OptionError, match="closed"):
        reader.read([1, 2, 3, 4])


def test_a_pickled_reader(files):
    again = pickle.loads(pickle.dumps(FileReader(files, False)))
    assert (again.fnames, again.check_data) == (files, False)
    assert found(again.read([70])) == [blob(70)]


def test_a_schema_beside_changes_nothing(tmp_path):
    with bp.create(tmp_path / "a.ffr", {"n": bp.Int()}) as out:
        out.append({"n": 5})
    assert found(FileReader(tmp_path / "a.ffr").read([0])) == [b"\x81\xa1n\x05"]


# --- writing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.ffr")), ids=lambda file: file.stem)
def test_the_same_bytes_as_the_original(file, tmp_path):
    samples = FileReader(file).read(range(len(json.loads(file.with_suffix(".json").read_text()))))
    writer = FileWriter(str(tmp_path / "a.ffr"), len(samples))
    for sample in samples:
        writer.write_one(sample)
    assert writer.count == writer.n == len(samples)
    writer.close()
    writer.close()
    assert (tmp_path / "a.ffr").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_bytes_can_be_written(kind, tmp_path):
    with FileWriter(tmp_path / "a.ffr", 3) as writer:
        for _ in range(3):
            writer.write_one(kind(b"12345"))
    assert found(FileReader(tmp_path / "a.ffr").read([0, 1, 2])) == [b"12345"] * 3


def test_a_buffer_that_is_used_again(tmp_path):
    buffer = bytearray(4)
    with FileWriter(tmp_path / "a.ffr", 3) as writer:
        for number in range(3):
            buffer[:] = bytes([number] * 4)
            writer.write_one(buffer)
    assert found(FileReader(tmp_path / "a.ffr").read([0, 1, 2])) == [bytes([n] * 4) for n in range(3)]


def test_too_few_and_too_many(tmp_path):
    writer = FileWriter(tmp_path / "a.ffr", 2)
    writer.write_one(b"1")
    with pytest.raises(bp.OptionError, match="1 samples came, 2 were promised"):
        writer.close()
    assert os.listdir(tmp_path) == []
    writer = FileWriter(tmp_path / "a.ffr", 1)
    writer.write_one(b"1")
    with pytest.raises(bp.OptionError, match="1 samples already"):
        writer.write_one(b"2")
    writer.close()
    assert FileReader(tmp_path / "a.ffr").n == 1
    with pytest.raises(bp.OptionError):
        FileWriter(tmp_path / "b.ffr", -1)


def test_nothing_is_half_written(tmp_path):
    written(tmp_path / "a.ffr", range(3))
    with pytest.raises(TypeError), FileWriter(tmp_path / "a.ffr", 3) as writer:
        writer.write_one("text is no bytes")
    assert found(FileReader(tmp_path / "a.ffr").read([2])) == [blob(2)]
    assert os.listdir(tmp_path) == ["a.ffr"]


def test_a_writer_that_nobody_closes(tmp_path):
    writer = FileWriter(tmp_path / "a.ffr", 1)
    writer.write_one(b"1")
    del writer
    assert found(FileReader(tmp_path / "a.ffr").read([0])) == [b"1"]
    writer = FileWriter(tmp_path / "b.ffr", 2)
    writer.write_one(b"1")
    del writer
    assert os.listdir(tmp_path) == ["a.ffr"]


# --- PyTorch ------------------------------------------------------------------------------------------------


class TestTorch:
    @pytest.fixture
    def ff(self):
        pytest.importorskip("torch")
        from batchplant.ffrecord import torch as found

        return found

    @pytest.fixture
    def numbers(self, ff, tmp_path):
        with FileWriter(tmp_path / "n.ffr", 50) as writer:
            for number in range(50):
                writer.write_one(pickle.dumps((number * 2, number * 3)))

        class Numbers(ff.Dataset):
            def __init__(self, *args):
                super().__init__(*args)
                self.calls = []

            def process(self, indices, data):
                self.calls.append(list(indices))
                return [pickle.loads(item) for item in data]

        return Numbers(tmp_path / "n.ffr")

    def test_a_batch_of_numbers_goes_in(self, numbers):
        assert numbers[[3, 0, 49]] == [(6, 9), (0, 0), (98, 147)]
        assert len(numbers) == 50
        with pytest.raises(TypeError, match="list of sample numbers"):
            numbers[3]

    def test_process_has_to_be_written(self, ff, numbers):
        with pytest.raises(NotImplementedError):
            ff.Dataset(numbers.fnames)[[0]]

    # From Python 3.12 on forking a process that has threads warns.
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_loader(self, ff, numbers, workers):
        loader = ff.DataLoader(numbers, batch_size=8, num_workers=workers, prefetch_factor=2)
        batches = list(loader)
        assert len(loader) == len(batches) == 7
        assert [row for doubled, _ in batches for row in doubled.tolist()] == list(range(0, 100, 2))
        if not workers:
            assert numbers.calls == [list(range(start, min(start + 8, 50))) for start in range(0, 50, 8)]

    def test_the_order_is_that_of_torch(self, ff, numbers):
        import torch

        def order(kind, **more):
            seeded = torch.Generator().manual_seed(5)
            loader = kind(numbers, batch_size=8, shuffle=True, generator=seeded, drop_last=True, **more)
            return loader, [batch[0].tolist() for batch in loader]

        _, theirs = order(torch.utils.data.DataLoader)
        loader, ours = order(ff.DataLoader)
        assert ours == theirs
        assert (len(ours), loader.batch_size, loader.drop_last) == (6, 8, True)

    def test_beginning_in_the_middle(self, ff, numbers):
        loader = ff.DataLoader(numbers, batch_size=10)
        whole = [batch[0].tolist() for batch in loader]
        loader.set_step(3)
        assert len(loader) == 2
        assert [batch[0].tolist() for batch in loader] == whole[3:]
        loader.set_step(0)
        assert len(loader) == 5
        for wrong in (5, -1):
            with pytest.raises(bp.OptionError, match="there are 5"):
                loader.set_step(wrong)
        with pytest.raises(bp.OptionError, match="skippable"):
            ff.DataLoader(numbers, batch_size=10, skippable=False).set_step(1)

    def test_samplers_and_collate(self, ff, numbers):
        loader = ff.DataLoader(numbers, batch_sampler=[[4, 2], [7]], collate_fn=list)
        assert list(loader) == [[(8, 12), (4, 6)], [(14, 21)]]
        assert next(iter(ff.DataLoader(numbers, sampler=[9, 8], collate_fn=list))) == [(18, 27)]

    def test_datasets_of_torch(self, ff):
        assert [batch.tolist() for batch in ff.DataLoader([1, 2, 3], batch_size=2)] == [[1, 2], [3]]

    def test_a_dataset_that_reads_itself(self, ff, numbers):
        class Own(ff.Dataset):
            def __init__(self, name):
                self.first = FileReader(name)
                self.other = numbers

            def __len__(self):
                return self.first.n

            def __getitem__(self, indices):
                return [len(item) for item in self.first.read(indices)]

        own = Own(numbers.fnames)
        assert own.ffreaders() == [own.first, numbers.reader]
        assert len(list(ff.DataLoader(own, batch_size=25))) == 2

    def test_parts_and_rows_of_datasets(self, ff, numbers):
        part = ff.Subset(numbers, [7, 9, 7])
        assert part[[2, 1]] == [(14, 21), (18, 27)]
        both = ff.ConcatDataset([part, numbers, part])
        assert len(both) == 56
        assert both[[0, 3, 52, 0, -1, 53]] == [(14, 21), (0, 0), (98, 147), (14, 21), (14, 21), (14, 21)]
        assert both.ffreaders() == [numbers.reader] * 3
        assert sum(len(batch[0]) for batch in ff.DataLoader(both, batch_size=10)) == 56
        with pytest.raises(IndexError):
            both[[56]]
        with pytest.raises(bp.OptionError):
            ff.ConcatDataset([])

    def test_a_sum_of_datasets(self, ff, numbers):
        both = numbers + ff.Subset(numbers, [7, 9]) + numbers
        assert isinstance(both, ff.ConcatDataset)
        assert len(both) == 102
        assert both[[51, 0, 52, -1]] == [(18, 27), (0, 0), (0, 0), (98, 147)]
        assert both.ffreaders() == [numbers.reader] * 3
        batches = list(ff.DataLoader(both, batch_size=10, collate_fn=list))
        assert [sample for batch in batches for sample in batch] == both[list(range(102))]
        with pytest.raises(bp.OptionError):
            numbers + list("ab")


def test_the_version_is_the_one_mirrored():
    import batchplant.ffrecord

    assert batchplant.ffrecord.__version__ == "1.4.0"


def test_importing_it_imports_no_torch():
    code = "import sys, batchplant.ffrecord; sys.exit('torch' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).returncode == 0


# --- the original -------------------------------------------------------------------------------------------

_THEIRS = """
import hashlib, json, sys
from ffrecord import FileReader, FileWriter
reader = FileReader(sys.argv[1], check_data=True)
reader.validate()
samples = [one.tobytes() for one in reader.read(list(range(reader.n)))]
writer = FileWriter(sys.argv[2], len(samples))
for one in samples:
    writer.write_one(one)
writer.close()
print(json.dumps([hashlib.sha256(one).hexdigest() for one in samples]))
"""


@pytest.mark.reference
@pytest.mark.skipif(not FFRECORD, reason="set BATCHPLANT_FFRECORD_PYTHON to a Python that has ffrecord")
def test_the_original_reads_what_we_write_and_back(tmp_path):
    ours, theirs = tmp_path / "ours.ffr", tmp_path / "theirs.ffr"
    written(ours, range(200))
    processes.run([FFRECORD, "-c", _THEIRS, str(ours), str(theirs)], check=True)
    assert ours.read_bytes() == theirs.read_bytes()
    assert found(FileReader(theirs).read(range(200))) == [blob(number) for number in range(200)]
