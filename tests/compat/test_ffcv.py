"""The mirror of FFCV: names and signatures, its files, scripts as its users write them, and FFCV itself."""

from __future__ import annotations

import importlib
import inspect
import json
import lzma
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import processes
import repository
from variants import exhaustive

torch = pytest.importorskip("torch")

from batchplant.ffcv.__main__ import main as run_as_script  # noqa: E402
from batchplant.ffcv.fields import (  # noqa: E402
    BytesField,
    FloatField,
    IntField,
    JSONField,
    NDArrayField,
    RGBImageField,
    TorchTensorField,
)
from batchplant.ffcv.fields.base import ARG_TYPE, Field  # noqa: E402
from batchplant.ffcv.fields.decoders import (  # noqa: E402
    CenterCropRGBImageDecoder,
    IntDecoder,
    NDArrayDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from batchplant.ffcv.fields.rgb_image import ResizedCropRGBImageDecoder  # noqa: E402
from batchplant.ffcv.libffcv import memcpy  # noqa: E402
from batchplant.ffcv.loader import Loader, OrderOption  # noqa: E402
from batchplant.ffcv.pipeline.allocation_query import AllocationQuery  # noqa: E402
from batchplant.ffcv.pipeline.compiler import Compiler, numba  # noqa: E402
from batchplant.ffcv.pipeline.operation import Operation  # noqa: E402
from batchplant.ffcv.pipeline.pipeline_spec import PipelineSpec  # noqa: E402
from batchplant.ffcv.pipeline.state import State  # noqa: E402
from batchplant.ffcv.reader import Reader  # noqa: E402
from batchplant.ffcv.transforms import (  # noqa: E402
    Convert,
    Cutout,
    ImageMixup,
    LabelMixup,
    MixupToOneHot,
    NormalizeImage,
    Poison,
    RandomBrightness,
    RandomContrast,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSaturation,
    RandomTranslate,
    ReplaceLabel,
    Squeeze,
    ToDevice,
    ToTensor,
    ToTorchImage,
    View,
)
from batchplant.ffcv.traversal_order.base import TraversalOrder  # noqa: E402
from batchplant.ffcv.writer import DatasetWriter  # noqa: E402

from batchplant.errors import DecodeError, EncodeError, MissingLibraryError, OptionError, SchemaError  # noqa: E402

GOLDEN = repository.GOLDEN / "beton"
FFCV = os.environ.get("BATCHPLANT_FFCV_PYTHON")
CPU = torch.device("cpu")
MEAN, STD = np.array([125.3, 123.0, 113.9]), np.array([63.0, 62.1, 66.7])

# What `inspect` says of FFCV 1.0.2, without its inner workings (worker functions, the code generators of
# NormalizeImage, EpochIterator's thread). [module]; name: a value; name(parameters): a class or a function.
SIGNATURES = """
[]
Loader(fname, batch_size, num_workers=-1, os_cache=True, order=<OrderOption.SEQUENTIAL: 1>,
    distributed=False, seed=None, indices=None, pipelines={}, custom_fields={}, drop_last=True,
    batches_ahead=3, recompile=False)
[writer]
TYPE_ID_HANDLER
HeaderType
FieldDescType
CURRENT_VERSION
ALLOC_TABLE_TYPE
MIN_PAGE_SIZE
MAX_PAGE_SIZE
from_shard(shard, pipeline)
count_samples_in_shard(shard, pipeline)
DatasetWriter(fname, fields, page_size=8388608, num_workers=-1)
DatasetWriter.from_indexed_dataset(self, dataset, indices=None, chunksize=100, shuffle_indices=False)
DatasetWriter.from_webdataset(self, shards, pipeline)
[reader]
ALLOC_TABLE_TYPE
HeaderType
CURRENT_VERSION
FieldDescType
Reader(fname, custom_handlers={})
Reader.file_name property
Reader.read_header(self)
Reader.read_field_descriptors(self)
Reader.read_metadata(self)
Reader.read_allocation_table(self)
[loader]
Loader(fname, batch_size, num_workers=-1, os_cache=True, order=<OrderOption.SEQUENTIAL: 1>,
    distributed=False, seed=None, indices=None, pipelines={}, custom_fields={}, drop_last=True,
    batches_ahead=3, recompile=False)
[loader.loader]
ORDER_TYPE
ORDER_MAP
DEFAULT_PROCESS_CACHE
DEFAULT_OS_CACHE
Loader(fname, batch_size, num_workers=-1, os_cache=True, order=<OrderOption.SEQUENTIAL: 1>,
    distributed=False, seed=None, indices=None, pipelines={}, custom_fields={}, drop_last=True,
    batches_ahead=3, recompile=False)
Loader.next_traversal_order(self)
Loader.filter(self, field_name, condition)
Loader.generate_code(self)
[loader.epoch_iterator]
EpochIterator.close(self)
[fields]
Field()
BytesField()
IntField()
FloatField()
RGBImageField(write_mode='raw', max_resolution=None, smart_threshold=None, jpeg_quality=90,
    compress_probability=0.5)
NDArrayField(dtype, shape)
JSONField()
TorchTensorField(dtype, shape)
[fields.base]
ARG_TYPE
Field()
Field.metadata_type property
Field.from_binary(binary)
Field.to_binary(self)
Field.get_decoder_class(self)
[fields.basics]
ARG_TYPE
BasicDecoder()
BasicDecoder.declare_state_and_memory(self, previous_state)
BasicDecoder.generate_code(self)
IntDecoder()
FloatDecoder()
FloatField()
FloatField.metadata_type property
FloatField.from_binary(binary)
FloatField.to_binary(self)
FloatField.encode(self, destination, field, malloc)
FloatField.get_decoder_class(self)
IntField()
IntField.metadata_type property
IntField.from_binary(binary)
IntField.to_binary(self)
IntField.encode(self, destination, field, malloc)
IntField.get_decoder_class(self)
[fields.bytes]
ARG_TYPE
BytesDecoder()
BytesDecoder.declare_state_and_memory(self, previous_state)
BytesDecoder.generate_code(self)
BytesField()
BytesField.metadata_type property
BytesField.from_binary(binary)
BytesField.to_binary(self)
BytesField.encode(self, destination, field, malloc)
BytesField.get_decoder_class(self)
[fields.json]
ENCODING
SEPARATOR
JSONField()
JSONField.metadata_type property
JSONField.encode(self, destination, field, malloc)
JSONField.unpack(batch)
[fields.ndarray]
ARG_TYPE
NDArrayDecoder()
NDArrayDecoder.declare_state_and_memory(self, previous_state)
NDArrayDecoder.generate_code(self)
NDArrayArgsType
NDArrayField(dtype, shape)
NDArrayField.metadata_type property
NDArrayField.from_binary(binary)
NDArrayField.to_binary(self)
NDArrayField.encode(self, destination, field, malloc)
NDArrayField.get_decoder_class(self)
TorchTensorField(dtype, shape)
TorchTensorField.encode(self, destination, field, malloc)
[fields.rgb_image]
ARG_TYPE
IMAGE_MODES
encode_jpeg(numpy_image, quality)
resizer(image, target_resolution)
get_random_crop(height, width, scale, ratio)
get_center_crop(height, width, _, ratio)
SimpleRGBImageDecoder()
SimpleRGBImageDecoder.declare_state_and_memory(self, previous_state)
SimpleRGBImageDecoder.generate_code(self)
ResizedCropRGBImageDecoder(output_size)
ResizedCropRGBImageDecoder.declare_state_and_memory(self, previous_state)
ResizedCropRGBImageDecoder.generate_code(self)
ResizedCropRGBImageDecoder.get_crop_generator property
RandomResizedCropRGBImageDecoder(output_size, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333))
RandomResizedCropRGBImageDecoder.get_crop_generator property
CenterCropRGBImageDecoder(output_size, ratio)
CenterCropRGBImageDecoder.get_crop_generator property
RGBImageField(write_mode='raw', max_resolution=None, smart_threshold=None, jpeg_quality=90,
    compress_probability=0.5)
RGBImageField.metadata_type property
RGBImageField.get_decoder_class(self)
RGBImageField.from_binary(binary)
RGBImageField.to_binary(self)
RGBImageField.encode(self, destination, image, malloc)
[fields.decoders]
FloatDecoder()
IntDecoder()
NDArrayDecoder()
RandomResizedCropRGBImageDecoder(output_size, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333))
CenterCropRGBImageDecoder(output_size, ratio)
SimpleRGBImageDecoder()
BytesDecoder()
[transforms]
ToTensor()
ToDevice(device, non_blocking=True)
ToTorchImage(channels_last=True, convert_back_int16=True)
NormalizeImage(mean, std, type)
Convert(target_dtype)
Squeeze(*dims)
View(target_dtype)
RandomResizedCrop(scale, ratio, size)
RandomHorizontalFlip(flip_prob=0.5)
RandomTranslate(padding, fill=(0, 0, 0))
Cutout(crop_size, fill=(0, 0, 0))
ImageMixup(alpha, same_lambda)
LabelMixup(alpha, same_lambda)
MixupToOneHot(num_classes)
Poison(mask, alpha, indices, clamp=(0, 255))
ReplaceLabel(indices, new_label)
ModuleWrapper(module)
RandomBrightness(magnitude, p=0.5)
RandomContrast(magnitude, p=0.5)
RandomSaturation(magnitude, p=0.5)
[transforms.common]
Squeeze(*dims)
Squeeze.generate_code(self)
Squeeze.declare_state_and_memory(self, previous_state)
[transforms.random_resized_crop]
RandomResizedCrop(scale, ratio, size)
RandomResizedCrop.generate_code(self)
RandomResizedCrop.declare_state_and_memory(self, previous_state)
[transforms.flip]
RandomHorizontalFlip(flip_prob=0.5)
RandomHorizontalFlip.generate_code(self)
RandomHorizontalFlip.declare_state_and_memory(self, previous_state)
[transforms.module]
ModuleWrapper(module)
ModuleWrapper.generate_code(self)
ModuleWrapper.declare_state_and_memory(self, previous_state)
[transforms.color_jitter]
RandomBrightness(magnitude, p=0.5)
RandomBrightness.generate_code(self)
RandomBrightness.declare_state_and_memory(self, previous_state)
RandomContrast(magnitude, p=0.5)
RandomContrast.generate_code(self)
RandomContrast.declare_state_and_memory(self, previous_state)
RandomSaturation(magnitude, p=0.5)
RandomSaturation.generate_code(self)
RandomSaturation.declare_state_and_memory(self, previous_state)
[transforms.normalize]
ch_dtype_from_numpy(dtype)
NormalizeImage(mean, std, type)
NormalizeImage.generate_code(self)
NormalizeImage.declare_state_and_memory(self, previous_state)
[transforms.poisoning]
Poison(mask, alpha, indices, clamp=(0, 255))
Poison.generate_code(self)
Poison.declare_state_and_memory(self, previous_state)
[transforms.cutout]
Cutout(crop_size, fill=(0, 0, 0))
Cutout.generate_code(self)
Cutout.declare_state_and_memory(self, previous_state)
[transforms.ops]
ToTensor()
ToTensor.generate_code(self)
ToTensor.declare_state_and_memory(self, previous_state)
ToDevice(device, non_blocking=True)
ToDevice.generate_code(self)
ToDevice.declare_state_and_memory(self, previous_state)
ToTorchImage(channels_last=True, convert_back_int16=True)
ToTorchImage.generate_code(self)
ToTorchImage.declare_state_and_memory(self, previous_state)
Convert(target_dtype)
Convert.generate_code(self)
Convert.declare_state_and_memory(self, previous_state)
View(target_dtype)
View.generate_code(self)
View.declare_state_and_memory(self, previous_state)
[transforms.mixup]
ImageMixup(alpha, same_lambda)
ImageMixup.generate_code(self)
ImageMixup.declare_state_and_memory(self, previous_state)
LabelMixup(alpha, same_lambda)
LabelMixup.generate_code(self)
LabelMixup.declare_state_and_memory(self, previous_state)
MixupToOneHot(num_classes)
MixupToOneHot.generate_code(self)
MixupToOneHot.declare_state_and_memory(self, previous_state)
[transforms.translate]
RandomTranslate(padding, fill=(0, 0, 0))
RandomTranslate.generate_code(self)
RandomTranslate.declare_state_and_memory(self, previous_state)
[transforms.replace_label]
ReplaceLabel(indices, new_label)
ReplaceLabel.generate_code(self)
ReplaceLabel.declare_state_and_memory(self, previous_state)
[traversal_order]
Sequential(loader)
Random(loader)
QuasiRandom(loader)
[traversal_order.base]
TraversalOrder(loader)
TraversalOrder.sample_order(self, epoch)
[traversal_order.sequential]
Sequential(loader)
Sequential.sample_order(self, epoch)
[traversal_order.random]
Random(loader)
Random.sample_order(self, epoch)
[traversal_order.quasi_random]
QuasiRandom(loader)
QuasiRandom.sample_order(self, epoch)
[pipeline]
Pipeline(operations)
PipelineSpec(source, decoder=None, transforms=None)
Compiler()
[pipeline.operation]
Operation()
Operation.accept_field(self, field)
Operation.accept_globals(self, metadata, memory_read)
Operation.generate_code(self)
Operation.declare_shared_memory(self, previous_state)
Operation.generate_code_for_shared_state(self)
Operation.declare_state_and_memory(self, previous_state)
[pipeline.compiler]
Compiler()
Compiler.set_enabled(cls, b)
Compiler.set_num_threads(cls, n)
Compiler.compile(cls, code, signature=None)
Compiler.get_iterator(cls)
[pipeline.allocation_query]
AllocationQuery(shape, dtype, device=None)
allocate_query(memory_allocation, batch_size, batches_ahead)
[pipeline.state]
State(jit_mode, device, shape, dtype)
[pipeline.pipeline_spec]
PipelineSpec(source, decoder=None, transforms=None)
PipelineSpec.accept_decoder(self, Decoder, output_name)
[memory_managers]
OSCacheManager(reader)
ProcessCacheManager(reader)
MemoryManager(reader)
MemoryContext()
[memory_managers.base]
MemoryContext()
MemoryContext.state property
MemoryContext.start_batch(self, batch)
MemoryManager(reader)
MemoryManager.schedule_epoch(self, batches)
MemoryManager.state_type property
[memory_managers.os_cache]
OSCacheContext(manager)
OSCacheContext.state property
OSCacheManager(reader)
OSCacheManager.schedule_epoch(self, schedule)
OSCacheManager.state_type property
OSCacheManager.compile_reader(self)
[memory_managers.process_cache]
ProcessCacheContext(manager, batches)
ProcessCacheManager(reader)
[types]
CURRENT_VERSION
HeaderType
ALLOC_TABLE_TYPE
FieldDescType
TYPE_ID_HANDLER
get_handlers(field_descriptors)
get_metadata_type(handlers)
[utils]
chunks(lst, n)
is_power_of_2(n)
align_to_page(ptr, page_size)
decode_null_terminated_string(bytes)
cast_int_to_byte_ptr(typingctx, src)
s_print(*a, **b)
"""


def signatures() -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for line in SIGNATURES.strip().splitlines():
        if line.startswith("["):
            lines = result.setdefault(line.strip("[]"), [])
        elif line.startswith("    "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return result


def parameters(function: Any) -> str:
    output = []
    for parameter in inspect.signature(function).parameters.values():
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        output.append(
            star
            + parameter.name
            + ("" if parameter.default is parameter.empty else f"={parameter.default!r}")
        )
    return ", ".join(output)


@pytest.mark.parametrize("module", signatures())
def test_names_and_signatures_are_those_of_ffcv(module: str) -> None:
    ours = importlib.import_module(f"batchplant.ffcv.{module}".rstrip("."))
    for line in signatures()[module]:
        name, bracket, rest = line.partition("(")
        name, _, kind = name.partition(" ")
        holder, _, method = name.partition(".")
        result = getattr(ours, holder)
        if method:
            result = inspect.getattr_static(result, method)
            result = result.__func__ if isinstance(result, staticmethod | classmethod) else result
        if kind == "property":
            assert isinstance(result, property), line
        elif bracket:
            ours_here, theirs = (text.removeprefix("cls, ") for text in (parameters(result), rest[:-1]))
            assert ours_here == theirs, line


def test_the_version_is_the_one_mirrored() -> None:
    import batchplant.ffcv

    assert batchplant.ffcv.__version__ == "1.0.2"


# -- files that FFCV wrote -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("golden")

    def unpack(name: str) -> tuple[str, dict[str, Any]]:
        path = folder / f"{name}.beton"
        if not path.exists():
            path.write_bytes(lzma.decompress((GOLDEN / f"{name}.beton.xz").read_bytes()))
        with np.load(GOLDEN / f"{name}.npz") as arrays:
            return str(path), dict(arrays)

    return unpack


@pytest.mark.parametrize("name", ["raw_fixed", "jpg", "proportion", "smart_resized"])
def test_files_of_ffcv(golden: Any, name: str) -> None:
    path, arrays = golden(name)
    fixed = name == "raw_fixed"
    loader = Loader(path, 4, num_workers=2, drop_last=False, pipelines={} if fixed else {"image": None})
    assert len(loader) == 4
    batches = list(loader)
    assert [len(batch) for batch in batches] == [7 if fixed else 6] * 4
    columns = [torch.cat(parts) for parts in zip(*batches, strict=True)]
    if fixed:
        assert np.array_equal(columns.pop(0).numpy().reshape(-1), arrays["image"])
    label, score, feat, blob, meta, tensor = columns
    assert (label.dtype, label.shape) == (torch.int64, (15, 1))
    assert np.array_equal(label[:, 0], arrays["label"])
    assert (score.dtype, score.shape) == (torch.float64, (15, 1))
    assert np.array_equal(score[:, 0], arrays["score"])
    assert np.array_equal(feat, arrays["feat"])
    assert np.array_equal(tensor, arrays["tensor"])
    lengths = arrays["blob_len"]
    assert blob.shape == (15, lengths.max())
    for row, wrote in enumerate(np.split(arrays["blob"], np.cumsum(lengths)[:-1])):
        assert np.array_equal(blob[row, : lengths[row]], wrote)
        assert not blob[row, lengths[row] :].any()
    values = [json.loads(str(text)) for text in arrays["meta"]]
    assert JSONField.unpack(meta) == values
    assert JSONField.unpack(meta[3]) == values[3]


def test_reader_of_ffcvs_tables(golden: Any) -> None:
    path, arrays = golden("jpg")
    reader = Reader(path)
    assert (reader.num_samples, reader.page_size, reader.num_fields) == (15, 1 << 21, 7)
    assert reader.field_names == ["image", "label", "score", "feat", "blob", "meta", "tensor"]
    kinds = [RGBImageField, IntField, FloatField, NDArrayField, BytesField, JSONField, NDArrayField]
    assert [type(handler) for handler in reader.handlers.values()] in (kinds, [*kinds[:-1], TorchTensorField])
    assert reader.metadata.dtype["f0"].names == ("mode", "width", "height", "data_ptr")
    assert np.array_equal(reader.metadata["f1"], arrays["label"])
    assert np.array_equal(reader.metadata["f0"]["height"], arrays["image_shape"][:, 0])
    assert reader.alloc_table.dtype.names == ("sample_id", "ptr", "size")
    assert len(reader.alloc_table) == 15 * 5
    assert (reader.handlers["feat"].dtype, reader.handlers["feat"].shape) == (np.dtype("float32"), (3, 4))
    manager = importlib.import_module("batchplant.ffcv.memory_managers").OSCacheManager(reader)
    assert sorted(manager.sample_to_pages) == list(range(15))
    ptr = reader.metadata["f0"]["data_ptr"][0]
    jpeg = manager.compile_reader()(ptr, manager.schedule_epoch([]).state)
    assert jpeg[:2].tobytes() == b"\xff\xd8"
    assert len(jpeg) == manager.ptr_to_size[int(ptr)]


def test_simple_decoder_needs_one_size(golden: Any) -> None:
    with pytest.raises(OptionError, match="CenterCropRGBImageDecoder") as caught:
        Loader(golden("jpg")[0], 4)
    assert isinstance(caught.value, TypeError)


# -- a file of our own ---------------------------------------------------------------------------------


class Images:
    """Samples of every kind; the image's first pixel is the sample's number."""

    def __init__(self, count: int, size: tuple[int, int] = (32, 32)) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image = np.random.default_rng(index).integers(0, 256, (*self.size, 3), dtype=np.uint8)
        image[0, 0] = index
        return image, index % 10


FIELDS = {"image": RGBImageField(), "label": IntField()}


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("cifar") / "train.beton")
    DatasetWriter(path, FIELDS, num_workers=1).from_indexed_dataset(Images(50))
    return path


class Waves:
    """Smooth images of several sizes, which survive JPEG and resizing."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        height, width = 60 + index, 80 - index
        y, x = np.mgrid[0:height, 0:width] / 80
        waves = [np.sin(x * (1 + index % 3) + y * part + index) for part in (1, 2, 3)]
        return (np.stack(waves, axis=-1) * 100 + 128).astype(np.uint8), index


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("imagenet") / "train.beton")
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=95), "label": IntField()}
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(Waves())
    return path


class Scale(torch.nn.Module):
    """A module of the user's own, in place of torchvision's Normalize."""

    def forward(self, batch: Any) -> Any:
        return (batch - 125) / 60


def test_a_script_as_for_cifar(cifar: str) -> None:
    fill = tuple(map(int, MEAN))
    loaders = {}
    for name in ("train", "test"):
        image: list[Any] = [SimpleRGBImageDecoder()]
        if name == "train":
            image += [RandomHorizontalFlip(), RandomTranslate(padding=2, fill=fill), Cutout(4, fill)]
        image += [
            ToTensor(),
            ToDevice(CPU, non_blocking=True),
            ToTorchImage(),
            Convert(torch.float32),
            Scale(),
        ]
        loaders[name] = Loader(
            cifar,
            batch_size=16,
            num_workers=2,
            order=OrderOption.RANDOM if name == "train" else OrderOption.SEQUENTIAL,
            drop_last=name == "train",
            pipelines={"image": image, "label": [IntDecoder(), ToTensor(), ToDevice("cpu:0"), Squeeze()]},
        )
    assert (len(loaders["train"]), len(loaders["test"])) == (3, 4)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for images, labels in loaders["train"]:
            assert images.shape == (16, 3, 32, 32)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert labels.shape == (16,)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    seen = torch.cat([labels for _, labels in loaders["test"]])
    assert seen.tolist() == [index % 10 for index in range(50)]
    assert loaders["train"].next_epoch == 2


def imagenet_pipelines(decoder: Any, dtype: Any = np.float16) -> dict[str, Any]:
    image = [decoder, RandomHorizontalFlip(), ToTensor(), ToDevice(CPU, non_blocking=True), ToTorchImage()]
    return {
        "image": [*image, NormalizeImage(MEAN, STD, dtype)],
        "label": [IntDecoder(), ToTensor(), Squeeze(), ToDevice(CPU, non_blocking=True)],
    }


def test_a_script_as_for_imagenet(imagenet: str) -> None:
    decoder = RandomResizedCropRGBImageDecoder((32, 32))
    loader = Loader(
        imagenet,
        8,
        2,
        order=OrderOption.RANDOM,
        seed=7,
        pipelines=imagenet_pipelines(decoder),
        os_cache=False,
    )
    orders = []
    for size in (32, 32, 48):
        # Training at a growing resolution.
        decoder.output_size = (size, size)
        labels = []
        for images, label in loader:
            assert images.dtype == torch.float16
            assert images.shape == (8, 3, size, size)
            assert images.stride() == (3 * size * size, 1, 3 * size, 3)
            assert images.float().std() > 0.1
            labels += label.tolist()
        assert sorted(labels) == list(range(24))
        orders.append(labels)
    assert orders[0] != orders[1] != orders[2]
    again = Loader(imagenet, 8, 2, order=OrderOption.RANDOM, seed=7, pipelines={"image": None})
    assert [labels[:, 0].tolist() for (labels,) in again] == [orders[0][at : at + 8] for at in (0, 8, 16)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_normalisation_may_stand_anywhere(imagenet: str, dtype: Any) -> None:
    def run(*steps: Any) -> Any:
        decoder = CenterCropRGBImageDecoder((24, 24), 224 / 256)
        loader = Loader(imagenet, 24, 2, pipelines={"image": [decoder, *steps], "label": None})
        return next(iter(loader))[0]

    def normalize() -> Any:
        return NormalizeImage(MEAN, STD, dtype)

    levels = run(ToTensor()).numpy()
    table = ((np.arange(256)[:, None] - MEAN) / STD).astype(dtype)
    expected = np.stack([table[levels[..., channel], channel] for channel in range(3)], axis=-1)
    # The engine computes what FFCV looks up: in float32 that may differ in the last digits.
    apart = 0 if dtype == np.float16 else 1e-6
    torch_image = (ToTensor(), ToTorchImage())
    result = [
        run(normalize(), *torch_image),
        run(*torch_image, normalize()),
        run(ToTensor(), normalize(), ToTorchImage()),
        run(ToTensor(), torch.nn.Identity(), ToTorchImage(), normalize()),
        run(*torch_image, OnTensors(), normalize()),
    ]
    for item in result:
        assert item.dtype == torch.from_numpy(expected).dtype
        assert item.stride() == (1728, 1, 72, 3)
        assert np.allclose(item.permute(0, 2, 3, 1).numpy(), expected, rtol=0, atol=apart)
    # On tensors it is FFCV's table, to the last bit.
    assert np.array_equal(result[3].permute(0, 2, 3, 1).numpy(), expected)
    early = run(normalize(), ToTensor())
    assert (early.shape, early.dtype) == ((24, 24, 24, 3), result[0].dtype)


def test_crops_of_the_users_own(imagenet: str) -> None:
    class Corner(ResizedCropRGBImageDecoder):
        @property
        def get_crop_generator(self) -> Any:
            return lambda height, width, scale, ratio: (0, 0, height // 2, width // 2)

    loader = Loader(imagenet, 24, pipelines={"image": [Corner((8, 8)), ToTensor()]})
    corner = next(iter(loader))[0]
    whole = next(iter(Loader(imagenet, 24, pipelines={"image": [CenterCropRGBImageDecoder((16, 16), 1.0)]})))[
        0
    ]
    assert corner.shape == (24, 8, 8, 3)
    assert isinstance(whole, np.ndarray)
    assert not np.array_equal(corner.numpy(), whole[:, :8, :8])


def test_further_views_come_behind_the_fields(imagenet: str) -> None:
    views = {
        "small": PipelineSpec("image", CenterCropRGBImageDecoder((8, 8), 1.0), [ToTensor()]),
        "label": [IntDecoder(), ToTensor(), Squeeze(1)],
        "image": None,
        "number": PipelineSpec("label", transforms=[ToTensor(), Convert(torch.float32)]),
    }
    label, small, number = next(iter(Loader(imagenet, 6, pipelines=views)))
    assert (label.shape, small.shape) == ((6,), (6, 8, 8, 3))
    assert number.tolist() == [[float(item)] for item in label]


def test_a_pipeline_may_go_on_from_another(imagenet: str) -> None:
    flip, tensor = RandomHorizontalFlip(), ToTensor()
    pipelines = {
        "image": [RandomResizedCropRGBImageDecoder((16, 16)), flip, tensor, ToTorchImage()],
        "early": PipelineSpec(flip, transforms=[Cutout(4), ToTensor()]),
        "late": PipelineSpec(tensor, transforms=[torch.nn.Identity()]),
    }
    for image, _, early, late in Loader(imagenet, 6, seed=3, pipelines=pipelines):
        assert torch.equal(image, late.permute(0, 3, 1, 2))
        cut = (early != late).any(3).flatten(1).sum(1)
        assert ((cut > 0) & (cut <= 16)).all()


def test_steps_on_arrays(cifar: str) -> None:
    def run(*steps: Any) -> Any:
        pipelines = {"image": [SimpleRGBImageDecoder(), *steps, ToTensor()], "label": None}
        return torch.cat([images for (images,) in Loader(cifar, 25, 2, seed=1, pipelines=pipelines)])

    plain = run()
    mask, alpha = np.full((32, 32, 3), 255.0), np.full((32, 32), 0.5)
    poisoned = run(Poison(mask, alpha, [3, 7]))
    assert (plain != poisoned).flatten(1).any(1).nonzero().flatten().tolist() == [3, 7]
    for step in (RandomBrightness(0.5, 1.0), RandomContrast(0.5, p=1), RandomSaturation(0.5, 1.0)):
        changed = run(step)
        assert (changed.dtype, changed.shape) == (torch.uint8, plain.shape)
        assert (changed != plain).float().mean() > 0.3
    assert torch.equal(run(RandomHorizontalFlip(1.0)), plain.flip(2))
    assert torch.equal(run(RandomTranslate(0)), plain)
    # Right behind the decoder, and behind another step, where it needs a pass of its own.
    assert run(RandomResizedCrop((0.2, 1.0), (0.75, 4 / 3), 16)).shape == (50, 16, 16, 3)
    assert run(RandomHorizontalFlip(0), RandomResizedCrop((0.2, 1.0), (0.75, 4 / 3), 16)).shape == (
        50,
        16,
        16,
        3,
    )
    assert torch.equal(run(RandomHorizontalFlip(0), RandomResizedCrop((1.0, 1.0), (1.0, 1.0), 32)), plain)


def test_labels(cifar: str) -> None:
    labels = [ReplaceLabel([1, 2], 77), ToTensor(), Squeeze()]
    pipelines = {"image": None, "label": [IntDecoder(), *labels]}
    assert next(iter(Loader(cifar, 5, pipelines=pipelines)))[0].tolist() == [0, 77, 77, 3, 4]
    viewed = {"image": None, "label": [IntDecoder(), ToTensor(), View(torch.int32)]}
    assert next(iter(Loader(cifar, 3, pipelines=viewed)))[0].tolist() == [[0, 0], [1, 0], [2, 0]]
    one = {"image": None, "label": [IntDecoder(), ToTensor(), Squeeze()]}
    assert next(iter(Loader(cifar, 1, pipelines=one)))[0].shape == (1,)


@pytest.mark.parametrize("same", [True, False])
def test_mixup(cifar: str, same: bool) -> None:
    pipelines = {
        "image": [SimpleRGBImageDecoder(), ImageMixup(1.0, same), ToTensor()],
        "label": [IntDecoder(), LabelMixup(1.0, same), ToTensor(), MixupToOneHot(10)],
        "plain": PipelineSpec("image", SimpleRGBImageDecoder(), [ToTensor()]),
        "parts": PipelineSpec("label", IntDecoder(), [LabelMixup(1.0, same), ToTensor()]),
    }
    for images, weights, plain, parts in Loader(cifar, 10, seed=2, pipelines=pipelines):
        assert torch.allclose(weights.sum(1), torch.ones(10))
        assert (parts[:, 2] == parts[0, 2]).all() == same
        part = parts[:, 2].reshape(-1, 1, 1, 1)
        mixed = part * plain + (1 - part) * plain.roll(1, 0)
        assert (images - mixed).abs().max() <= 1


# -- operations of users -------------------------------------------------------------------------------


class AddNumber(Operation):
    """As FFCV's documentation teaches to write one: a loop, with the samples' numbers."""

    def __init__(self, amount: int = 0) -> None:
        super().__init__()
        self.amount = amount

    def generate_code(self) -> Any:
        every, amount = Compiler.get_iterator(), self.amount

        def add(values: Any, memory: Any, indices: Any) -> Any:
            for row in every(values.shape[0]):
                memory[row] = values[row] + indices[row] + amount
            return memory

        add.is_parallel = True  # type: ignore[attr-defined]
        add.with_indices = True  # type: ignore[attr-defined]
        return add

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        return replace(previous_state, jit_mode=True), AllocationQuery(
            previous_state.shape, previous_state.dtype
        )


class OnTensors(Operation):
    """Behind ToTensor, where nothing is compiled."""

    def generate_code(self) -> Any:
        def same(batch: Any, memory: Any) -> Any:
            assert isinstance(batch, torch.Tensor)
            assert memory is None
            return batch

        return same

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        assert not previous_state.jit_mode
        assert isinstance(previous_state.dtype, torch.dtype)
        return previous_state, None


class SharedShift(Operation):
    """The same random shift for every field it stands in, by memory that they share."""

    def declare_shared_memory(self, previous_state: State) -> Any:
        return AllocationQuery((1,), np.dtype("<i8"))

    def generate_code_for_shared_state(self) -> Any:
        def fill(shared: Any) -> None:
            shared[:] = np.random.randint(1, 1000, shared.shape)

        return fill

    def generate_code(self) -> Any:
        def shift(values: Any, memory: Any, shared: Any) -> Any:
            out, scratch = memory
            scratch[:] = shared
            out[:] = values + scratch
            return out

        return shift

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        allocation_query = AllocationQuery((1,), np.dtype("<i8"))
        return replace(previous_state, jit_mode=False), (allocation_query, allocation_query)


@pytest.fixture(params=[False, True], ids=["plain", "numba"])
def compiled(request: pytest.FixtureRequest) -> Any:
    if request.param and numba() is None:
        pytest.skip("numba is not installed")
    Compiler.set_enabled(request.param)
    yield request.param
    Compiler.set_enabled(True)


def test_operations_of_users(cifar: str, compiled: bool) -> None:
    add = AddNumber()
    pipelines = {"image": None, "label": [IntDecoder(), add, ToTensor(), OnTensors(), Squeeze()]}
    loader = Loader(cifar, 20, 2, drop_last=False, pipelines=pipelines, recompile=True)
    expected = np.array([index % 10 + index for index in range(50)])
    assert torch.cat([label for (label,) in loader]).tolist() == expected.tolist()
    add.amount = 5
    assert torch.cat([label for (label,) in loader]).tolist() == (expected + 5).tolist()


def test_operations_may_share_memory(cifar: str) -> None:
    shift = SharedShift()
    pipelines = {
        "image": None,
        "label": [IntDecoder(), shift, ToTensor()],
        "other": PipelineSpec("label", IntDecoder(), [shift, ToTensor()]),
        "plain": PipelineSpec("label", IntDecoder(), [ToTensor()]),
    }
    shifts = set()
    for label, other, plain in Loader(cifar, 10, pipelines=pipelines):
        assert torch.equal(label, other)
        shifts.update((label - plain).flatten().tolist())
    assert len(shifts) > 10
    assert min(shifts) >= 1


def test_a_decoder_of_the_users_own(cifar: str, compiled: bool) -> None:
    class Corner(SimpleRGBImageDecoder):
        """Reads the raw pixels itself."""

        def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
            state, _ = super().declare_state_and_memory(previous_state)
            assert state.shape == (32, 32, 3)
            return replace(state, shape=(3,)), AllocationQuery((3,), state.dtype)

        def generate_code(self) -> Any:
            read = self.memory_read

            def decode(indices: Any, memory: Any, metadata: Any, storage: Any) -> Any:
                for row in range(indices.shape[0]):
                    memory[row] = read(metadata[indices[row]]["data_ptr"], storage)[:3]
                return memory

            return decode

    pipelines = {"image": [Corner(), ToTensor()], "label": None}
    corners = torch.cat([corner for (corner,) in Loader(cifar, 25, pipelines=pipelines)])
    assert corners.tolist() == [[index] * 3 for index in range(50)]


class Mixed(Images):
    """Numbers, bytes and arrays beside the image."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image, label = super().__getitem__(index)
        blob = np.arange(index % 7, dtype=np.uint8)
        return image, label, index / 4, blob, np.full((2, 3), index, np.float32)


@pytest.mark.parametrize("mode", ["raw", "jpg"])
def test_decoders_called_by_hand_give_what_the_loader_gives(
    tmp_path: Path, compiled: bool, mode: str
) -> None:
    path = str(tmp_path / "mixed.beton")
    fields: dict[str, Field] = {
        "image": RGBImageField(mode), "label": IntField(), "quarter": FloatField(), "blob": BytesField(),
        "array": NDArrayField(np.dtype("float32"), (2, 3)),
    }  # fmt: skip
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(Mixed(12, (24, 36)))
    [expected] = Loader(path, 12, pipelines={"image": [CenterCropRGBImageDecoder((8, 8), 0.5), ToTensor()]})
    reader = Reader(path)
    manager = importlib.import_module("batchplant.ffcv.memory_managers").OSCacheManager(reader)
    indices = np.array([7, 0, 11])
    for number, (name, field) in enumerate(reader.handlers.items()):
        decoder = field.get_decoder_class()() if number else CenterCropRGBImageDecoder((8, 8), 0.5)
        table = reader.metadata[f"f{number}"]
        decoder.accept_field(field)
        decoder.accept_globals(table, manager.compile_reader())
        _, query = decoder.declare_state_and_memory(State(True, CPU, None, np.dtype("u1")))
        # Room for more than is asked for, and not empty.
        memory = np.full((5, *query.shape), 99, query.dtype)
        decode = Compiler.compile(decoder.generate_code())
        with manager.schedule_epoch([indices]) as context:
            result = decode(indices, memory, table, context.state)
        assert result.base is memory, name
        assert np.array_equal(result, expected[number].numpy()[indices]), name


def test_a_image_that_a_decoder_called_by_hand_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "damaged.beton"
    DatasetWriter(
        str(path), {"image": RGBImageField("jpg"), "label": IntField()}, num_workers=1
    ).from_indexed_dataset(Images(3))
    reader = Reader(str(path))
    data = bytearray(path.read_bytes())
    at = int(reader.metadata["f0"]["data_ptr"][1])
    data[at : at + 200] = bytes(200)
    path.write_bytes(data)
    manager = importlib.import_module("batchplant.ffcv.memory_managers").OSCacheManager(Reader(str(path)))
    decoder = SimpleRGBImageDecoder()
    decoder.accept_globals(reader.metadata["f0"], manager.compile_reader())
    state = manager.schedule_epoch([]).state
    with pytest.raises(DecodeError) as caught:
        decoder.generate_code()(
            np.arange(3), np.zeros((3, 32, 32, 3), np.uint8), reader.metadata["f0"], state
        )
    assert caught.value.sample == 1


def test_the_code_stays_until_it_is_compiled_anew(cifar: str, compiled: bool) -> None:
    pipelines = {"image": [SimpleRGBImageDecoder(), AddNumber(), ToTensor()], "label": None}
    for recompile in (False, True):
        loader = Loader(cifar, 25, pipelines=pipelines, recompile=recompile)
        list(loader)
        first = loader.code
        assert list(first) == ["image"]
        list(loader)
        assert (loader.code != first) == recompile


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_batches_on_a_device(imagenet: str, dtype: Any) -> None:
    """The same as on the CPU, while the stream of the caller is busy."""

    def run(device: str) -> Any:
        image = [
            RandomResizedCropRGBImageDecoder((32, 32)),
            RandomHorizontalFlip(),
            ToTensor(),
            ToDevice(device),
        ]
        label = [IntDecoder(), ToTensor(), ToDevice(device), OnTensors(), Squeeze()]
        pipelines = {"image": [*image, ToTorchImage(), NormalizeImage(MEAN, STD, dtype)], "label": label}
        return Loader(imagenet, 6, 2, order=OrderOption.RANDOM, seed=1, pipelines=pipelines)

    busy = torch.randn(4000, 4000, device="cuda:0")
    result = []
    for images, labels in run("cuda:0"):
        assert images.is_cuda
        assert labels.is_cuda
        assert images.is_contiguous(memory_format=torch.channels_last)
        busy = busy @ busy / 100
        result.append((images.clone(), labels.clone()))
    for (images, labels), (there, same) in zip(run("cpu"), result, strict=True):
        assert torch.equal(labels, same.cpu())
        assert images.dtype == there.dtype
        assert (images.float() - there.cpu().float()).abs().max() < 1e-6


# -- orders and subsets --------------------------------------------------------------------------------


def labels_of(loader: Loader) -> list[int]:
    return [int(item) for batch in loader for item in batch[-1]]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Samples over several pages; the label is the sample's number."""
    path = str(tmp_path_factory.mktemp("numbers") / "numbers.beton")
    samples = [(np.full(600_000, number % 256, dtype=np.uint8), number) for number in range(20)]
    fields = {"blob": BytesField(), "label": IntField()}
    DatasetWriter(path, fields, page_size=1 << 21, num_workers=1).from_indexed_dataset(samples)
    return path


def test_filter(cifar: str) -> None:
    loader = Loader(cifar, 8, drop_last=False, indices=range(10, 40))
    seen = []

    def even(value: Any) -> Any:
        seen.append(value.shape)
        return value[0] % 2 == 0

    chosen = loader.filter("label", even)
    assert set(seen) == {(1,)}
    assert chosen.indices.tolist() == list(range(10, 40, 2))
    assert labels_of(chosen) == [index % 10 for index in range(10, 40, 2)]
    assert chosen.batch_size == 8
    assert labels_of(chosen.filter("label", lambda value: value > 100)) == []
    with pytest.raises(OptionError, match="the fields are: image, label"):
        loader.filter("size", bool)


class Backwards(TraversalOrder):
    def sample_order(self, epoch: int) -> Any:
        return self.indices[::-1] if epoch == 0 else self.indices[epoch:]


def test_orders_of_users(numbers: str) -> None:
    loader = Loader(numbers, 6, order=Backwards, drop_last=False, pipelines={"blob": None})
    assert len(loader) == 4
    assert labels_of(loader) == list(range(20))[::-1]
    assert labels_of(loader) == list(range(1, 20))
    some = Loader(numbers, 2, order=Backwards, indices=[3, 9, 4, 7], pipelines={"blob": None})
    assert labels_of(some) == [7, 4, 9, 3]
    with pytest.raises(OptionError, match="subclass of TraversalOrder"):
        Loader(numbers, 2, order="random")


def test_epochs(numbers: str) -> None:
    def make(order: OrderOption, **options: Any) -> Loader:
        return Loader(numbers, 5, order=order, pipelines={"blob": None}, **options)

    for order in (OrderOption.RANDOM, OrderOption.QUASI_RANDOM):
        loader = make(order, seed=4)
        first, second = labels_of(loader), labels_of(loader)
        assert sorted(first) == sorted(second) == list(range(20))
        assert first != second
        assert loader.next_epoch == 2
        again = make(order, seed=4)
        assert again.next_traversal_order().tolist() == first
        again.next_epoch = 1
        assert labels_of(again) == second
        assert labels_of(make(order, seed=5)) != first
    assert labels_of(make(OrderOption.SEQUENTIAL)) == list(range(20))
    assert {make(OrderOption.RANDOM).seed for _ in range(4)} != {0}


@pytest.mark.parametrize("order", list(OrderOption))
def test_ranks_share_an_epoch(numbers: str, monkeypatch: pytest.MonkeyPatch, order: OrderOption) -> None:
    parts = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        loader = Loader(numbers, 4, order=order, distributed=True, drop_last=False, pipelines={"blob": None})
        parts.append(labels_of(loader))
        assert sorted(loader.traversal_order.sample_order(0).tolist()) == sorted(parts[-1])
        # Without distributed, a process reads all, whoever it is.
        assert labels_of(Loader(numbers, 4, pipelines={"blob": None})) == list(range(20))
    assert sorted(item for part in parts for item in part) == list(range(20))
    assert {len(part) for part in parts} <= {6, 7}


def test_distributed_needs_a_group(numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(OptionError, match="init_process_group"):
        Loader(numbers, 4, distributed=True)


def test_a_loader_can_be_resumed(numbers: str) -> None:
    loader = Loader(numbers, 4, order=OrderOption.RANDOM, seed=1, pipelines={"blob": None})
    whole = labels_of(Loader(numbers, 4, order=OrderOption.RANDOM, seed=1, pipelines={"blob": None}))
    epoch = iter(loader)
    next(epoch), next(epoch)
    state = json.loads(json.dumps(loader.state_dict()))
    other = Loader(numbers, 4, order=OrderOption.RANDOM, seed=1, pipelines={"blob": None})
    other.load_state_dict(state)
    assert labels_of(other) == whole[8:]


def test_mistakes_are_told(cifar: str) -> None:
    with pytest.raises(OptionError, match="there are: image, label"):
        Loader(cifar, 4, pipelines={"mask": [ToTensor()]})
    with pytest.raises(OptionError, match="list of operations"):
        Loader(cifar, 4, pipelines={"label": ToTensor()})
    with pytest.raises(OptionError, match="holds operations and modules"):
        Loader(cifar, 4, pipelines={"label": [IntDecoder(), 3]})
    with pytest.raises(OptionError, match="in no other pipeline"):
        Loader(cifar, 4, pipelines={"two": PipelineSpec(IntDecoder())})
    add = AddNumber()
    with pytest.raises(OptionError, match="cannot do the same twice"):
        Loader(cifar, 4, pipelines={"label": [IntDecoder(), add], "two": PipelineSpec(add)})
    with pytest.raises(AssertionError, match="NumPy arrays"):
        State(True, CPU, (1,), torch.float32)


# -- the writer ----------------------------------------------------------------------------------------


class Everything:
    """A sample with every field; sample ``bad`` goes wrong."""

    def __init__(self, bad: int = -1, how: str = "") -> None:
        self.bad, self.how = bad, how

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index == self.bad:
            if self.how == "raise":
                raise KeyError("no such row")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                os._exit(3)
            if self.how == "unpicklable":
                return (lambda: None,)
            if self.how == "short":
                return (1, 2)
            if self.how == "wrong":
                return (np.zeros((4, 4)), *self[0][1:])
        return (
            np.full((8, 12, 3), index, dtype=np.uint8),
            index,
            index / 2,
            np.arange(index % 5 + 1, dtype=np.uint8),
            np.full((2, 3), index, dtype=np.float32),
            torch.full((4,), index, dtype=torch.int32),
            {"number": index, "text": "ä"},
        )


def everything() -> dict[str, Field]:
    return {
        "image": RGBImageField(),
        "label": IntField(),
        "score": FloatField(),
        "blob": BytesField(),
        "array": NDArrayField(np.dtype("float32"), (2, 3)),
        "tensor": TorchTensorField(torch.int32, (4,)),
        "meta": JSONField(),
    }


@pytest.mark.parametrize("workers", [1, 3])
def test_write_and_load(tmp_path: Path, workers: int) -> None:
    path = str(tmp_path / "all.beton")
    writer = DatasetWriter(path, everything(), num_workers=workers)
    indices = [*range(59, 0, -1)]
    writer.from_indexed_dataset(Everything(), indices, chunksize=7)
    columns = [torch.cat(parts) for parts in zip(*Loader(path, 10, drop_last=False), strict=True)]
    image, label, score, blob, array, tensor, meta = columns
    assert label[:, 0].tolist() == indices
    assert image[:, 3, 3, 1].tolist() == indices
    assert score[:, 0].tolist() == [index / 2 for index in indices]
    assert blob[:, -1].tolist() == [4 if index % 5 == 4 else 0 for index in indices]
    assert array[:, 1, 2].tolist() == indices
    assert tensor[:, 3].tolist() == indices
    assert JSONField.unpack(meta) == [{"number": index, "text": "ä"} for index in indices]
    assert Reader(path).page_size == 8 << 20
    np.random.seed(3)
    writer.from_indexed_dataset(Everything(), shuffle_indices=True)
    shuffled = [int(item) for batch in Loader(path, 60) for item in batch[1]]
    assert sorted(shuffled) == list(range(60)) != shuffled


@pytest.mark.parametrize("mode", ["raw", "jpg", "smart", "proportion"])
def test_write_modes(tmp_path: Path, mode: str) -> None:
    path = str(tmp_path / "modes.beton")
    field = RGBImageField(mode, max_resolution=70, smart_threshold=66 * 70 * 3, compress_probability=0.5)
    DatasetWriter(path, {"image": field, "label": IntField()}, num_workers=2).from_indexed_dataset(Waves())
    table = Reader(path).metadata["f0"]
    assert max(table["width"].max(), table["height"].max()) == 70
    jpeg = (table["mode"] == 0).sum()
    assert {"raw": jpeg == 0, "jpg": jpeg == 24}.get(mode, 0 < jpeg < 24)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "KeyError: 'no such row'"),
        ("kill", "SIGKILL"),
        ("exit", "exit code 3"),
        ("unpicklable", "lambda"),
        ("short", "2 values, and there are 7 fields"),
        ("wrong", "float64"),
    ],
)
def test_a_bad_sample_stops_the_writer_at_once(tmp_path: Path, how: str, reason: str) -> None:
    path = tmp_path / "old.beton"
    path.write_bytes(b"what was there")
    writer = DatasetWriter(str(path), everything(), num_workers=3)
    with pytest.raises((EncodeError, SchemaError), match=reason) as caught:
        writer.from_indexed_dataset(Everything(37, how), range(59, 0, -1))
    assert "sample 37" in str(caught.value)
    assert path.read_bytes() == b"what was there"
    assert os.listdir(tmp_path) == ["old.beton"]
    assert not multiprocessing.active_children()


def test_a_raising_dataset_without_processes(tmp_path: Path) -> None:
    writer = DatasetWriter(str(tmp_path / "a.beton"), everything(), num_workers=1)
    with pytest.raises(EncodeError, match=r"sample 5: .*no such row") as caught:
        writer.from_indexed_dataset(Everything(5, "raise"))
    assert isinstance(caught.value.__cause__, KeyError)


def test_mistakes_of_writing(tmp_path: Path) -> None:
    for size in (1 << 20, 3 << 21, 1 << 32):
        with pytest.raises(OptionError, match="power of two"):
            DatasetWriter(str(tmp_path / "a.beton"), FIELDS, page_size=size)
    with pytest.raises(OptionError, match="bfloat16"):
        TorchTensorField(torch.bfloat16, (2,))
    with pytest.raises(EncodeError, match="tuple of values"):
        DatasetWriter(str(tmp_path / "a.beton"), FIELDS, num_workers=1).from_indexed_dataset([{"image": 1}])


@pytest.mark.parametrize("dtype", ["float64", "int16", "bool", "uint8"])
def test_bytes_may_come_as_other_numbers(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "a.beton"
    values = [np.array([0, 1, 1], dtype), np.zeros(2, dtype)]
    writer = DatasetWriter(str(path), {"blob": BytesField()}, num_workers=1)
    writer.from_indexed_dataset([(value,) for value in values])
    [(result,)] = Loader(str(path), 2)
    assert result.tolist() == [[0, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("value", [256.0, -1.0, 0.5, np.nan])
def test_numbers_that_are_no_bytes(tmp_path: Path, value: float) -> None:
    writer = DatasetWriter(str(tmp_path / "a.beton"), {"blob": BytesField()}, num_workers=1)
    with pytest.raises(EncodeError, match="whole numbers from 0 to 255"):
        writer.from_indexed_dataset([(np.zeros(2),), (np.array([value]),)])


class FakeWebDataset:
    """Stands in for webdataset.WebDataset: a shard is a text file with a number per line."""

    def __init__(self, shard: str, **_: Any) -> None:
        self.lines = Path(shard).read_text().split()

    def map(self, function: Any) -> Any:
        return map(function, self.lines)


@pytest.mark.parametrize("workers", [1, 3])
def test_from_webdataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    fake = types.ModuleType("webdataset")
    fake.WebDataset = FakeWebDataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "webdataset", fake)
    shards = []
    for number in range(5):
        shards.append(str(tmp_path / f"shard{number}"))
        Path(shards[-1]).write_text(" ".join(map(str, range(number * 100, number * 100 + 90))))

    def pipeline(dataset: Any) -> Any:
        return dataset.map(lambda line: (np.full(3, int(line) % 256, dtype=np.uint8), int(line)))

    path = str(tmp_path / "shards.beton")
    fields: dict[str, Field] = {"blob": BytesField(), "label": IntField()}
    DatasetWriter(path, fields, num_workers=workers).from_webdataset(shards, pipeline)
    expected = [number * 100 + row for number in range(5) for row in range(90)]
    assert labels_of(Loader(path, 45)) == expected
    Path(shards[2]).write_text("1 2 three")
    with pytest.raises(EncodeError, match=r"sample 2 of .*shard2: .*invalid literal"):
        DatasetWriter(path, fields, num_workers=workers).from_webdataset(shards, pipeline)
    assert labels_of(Loader(path, 45)) == expected


def test_webdataset_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises((MissingLibraryError, EncodeError), match="pip install webdataset"):
        DatasetWriter(str(tmp_path / "a.beton"), FIELDS, num_workers=1).from_webdataset(["a.tar"], list)


# -- fields of users -----------------------------------------------------------------------------------


class PairDecoder(Operation):
    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        dtype = np.dtype("<f4")
        return replace(previous_state, jit_mode=True, shape=(4,), dtype=dtype), AllocationQuery((4,), dtype)

    def generate_code(self) -> Any:
        read, every, copy = self.memory_read, Compiler.get_iterator(), Compiler.compile(memcpy)

        def decode(indices: Any, memory: Any, metadata: Any, storage: Any) -> Any:
            for row in every(indices.shape[0]):
                entry = metadata[indices[row]]
                copy(read(entry["where"], storage), memory[row])
                memory[row] *= entry["factor"]
            return memory

        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


class PairField(Field):
    """(factor, value): the factor in the table, the value four times in the pages."""

    @property
    def metadata_type(self) -> Any:
        return np.dtype([("factor", "<f4"), ("where", "<u8")])

    @staticmethod
    def from_binary(binary: Any) -> Field:
        return PairField()

    def to_binary(self) -> Any:
        return np.zeros(1, dtype=ARG_TYPE)[0]

    def encode(self, destination: Any, field: Any, malloc: Any) -> None:
        destination["factor"] = field[0]
        destination["where"], memory = malloc(16)
        memory[:] = np.full(4, field[1], dtype="<f4").view("<u1")

    def get_decoder_class(self) -> Any:
        return PairDecoder


class Pairs(Images):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (*super().__getitem__(index), (2.0, index))


@pytest.mark.parametrize("workers", [1, 2])
def test_fields_of_users(tmp_path: Path, compiled: bool, workers: int) -> None:
    path = str(tmp_path / "custom.beton")
    fields = {**FIELDS, "pair": PairField()}
    # Images of 300 kB, so that samples do not fit pages evenly.
    writer = DatasetWriter(path, fields, page_size=1 << 21, num_workers=workers)
    writer.from_indexed_dataset(Pairs(20, (320, 320)))
    loader = Loader(path, 10, 2, custom_fields={"pair": PairField})
    for images, labels, pairs in loader:
        numbers = images[:, 0, 0, 0]
        assert torch.equal(pairs, (numbers * 2.0)[:, None].expand(10, 4))
        assert torch.equal(labels[:, 0], numbers.long() % 10)
    assert len(loader.filter("pair", lambda pair: pair[0] < 10).indices) == 5
    pages = Reader(path, {"pair": PairField}).alloc_table
    ends = (pages["ptr"] + pages["size"] - 1) >> 21
    assert (pages["ptr"] >> 21 == ends).all()
    with pytest.raises(OptionError, match=r"custom_fields=\{'pair': ItsField\}"):
        Loader(path, 10)


class WordDecoder(NDArrayDecoder):
    """Nothing but another name."""


class WordField(NDArrayField):
    """A word, filled up with blanks."""

    def __init__(self, longest: int) -> None:
        super().__init__(np.dtype("uint8"), (longest,))

    def encode(self, destination: Any, field: Any, malloc: Any) -> None:
        data = field.encode().ljust(self.shape[0])
        super().encode(destination, np.frombuffer(data, np.uint8), malloc)


class DimField(RGBImageField):
    """Images of half the brightness."""

    def encode(self, destination: Any, image: Any, malloc: Any) -> None:
        super().encode(destination, np.asarray(image) // 2, malloc)


@pytest.mark.parametrize("decoder", [WordDecoder, NDArrayDecoder, None])
def test_fields_derived_from_ffcvs_own(tmp_path: Path, compiled: bool, decoder: Any) -> None:
    path, photos = str(tmp_path / "words.beton"), Images(20)
    words = [f"word{'x' * index}" for index in range(20)]
    fields = {"word": WordField(30), "image": DimField()}
    samples = [(words[index], photos[index][0]) for index in range(20)]
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(samples)
    loader = Loader(
        path, 5, 2, order=OrderOption.RANDOM, seed=1,
        pipelines={"word": [decoder()] if decoder else [ToTensor()]},
        custom_fields={"word": WordField, "image": DimField},
    )  # fmt: skip
    result = {}
    for batch, images in loader:
        for row, image in zip(np.asarray(batch), images, strict=True):
            result[row.tobytes().decode().rstrip()] = image
    assert sorted(result) == sorted(words)
    for word, image in result.items():
        assert np.array_equal(image.numpy(), photos[words.index(word)][0] // 2)


def test_fields_of_users_that_go_wrong(tmp_path: Path) -> None:
    path = tmp_path / "custom.beton"
    with pytest.raises(EncodeError, match="sample 2, field 'pair': IndexError"):
        DatasetWriter(str(path), {"pair": PairField()}, num_workers=1).from_indexed_dataset(
            [((1.0, 2),), ((1.0, 2),), ((),)]
        )
    with pytest.raises(EncodeError, match="raise page_size"):
        DatasetWriter(str(path), {**FIELDS, "pair": PairField()}, 1 << 21, 1).from_indexed_dataset(
            Pairs(3, (1000, 1000))
        )
    assert os.listdir(tmp_path) == []


# -- scripts -------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch.multiprocessing
import ffcv
from ffcv.loader import Loader, OrderOption
from ffcv.fields.decoders import IntDecoder
from ffcv.transforms import ToTensor, Squeeze
import ffcv.transforms.ops as ops

def labels(number, path):
    from ffcv.loader import Loader as Again
    pipelines = {'image': None, 'label': [IntDecoder(), ToTensor(), Squeeze()]}
    print([one.tolist() for one, in Again(path, 3, 1, indices=range(6), pipelines=pipelines)], flush=True)

if __name__ == '__main__':
    assert ops.ToTensor is ToTensor
    labels(0, sys.argv[1])
    torch.multiprocessing.spawn(labels, (sys.argv[1],), nprocs=1)
"""


def run_script(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text))
    return processes.run(
        [sys.executable, "-m", "batchplant.ffcv", str(script), *arguments],
        capture_output=True,
        text=True,
    )


def test_an_unchanged_script_runs(tmp_path: Path, cifar: str) -> None:
    done = run_script(tmp_path, SCRIPT, cifar)
    assert done.returncode == 0, done.stderr
    # Once by itself, once in a process that it spawned.
    assert done.stdout.splitlines() == ["[[0, 1, 2], [3, 4, 5]]"] * 2


def test_what_does_not_exist_is_told() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"stands in for batchplant\.ffcv here, has no module"):
        importlib.import_module("batchplant.ffcv.magic")
    with pytest.raises(ImportError, match=r"cannot import name 'Magic' from 'batchplant\.compat\.ffcv"):
        exec("from batchplant.ffcv.transforms import Magic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "usage: python -m batchplant.ffcv"), (["nothing.py"], "no script nothing.py")],
)
def test_a_script_that_is_not_there(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["batchplant.ffcv", *arguments])
    with pytest.raises(SystemExit) as caught:
        run_as_script()
    assert caught.value.code
    assert message in capsys.readouterr().out + str(caught.value.code)


# -- FFCV itself ---------------------------------------------------------------------------------------

REFERENCE = """
import sys
import numpy as np
from ffcv.loader import Loader, OrderOption
from ffcv.fields.decoders import *
from ffcv.transforms import *

path, decoder, out = sys.argv[1:]
decoder = {'simple': SimpleRGBImageDecoder, 'center': lambda: CenterCropRGBImageDecoder((24, 24), 224 / 256)}
mean, std = np.array([125.3, 123.0, 113.9]), np.array([63.0, 62.1, 66.7])
image = [decoder[sys.argv[2]](), ToTensor()]
normal = [decoder[sys.argv[2]](), NormalizeImage(mean, std, np.float16), ToTensor(), ToTorchImage()]
found = []
for image in (image, normal):
    loader = Loader(path, 8, num_workers=2, order=OrderOption.SEQUENTIAL, pipelines={'image': image})
    # Copied, for FFCV writes the next batches over them.
    batches = [[one.numpy().copy() for one in batch] for batch in loader]
    found += [np.concatenate(parts) for parts in zip(*batches)]
np.savez(out, *found)
"""


@pytest.mark.reference
@pytest.mark.skipif(not FFCV, reason="set BATCHPLANT_FFCV_PYTHON to a Python that has FFCV")
@pytest.mark.parametrize("decoder", ["simple", "center"])
def test_the_same_batches_as_ffcv(tmp_path: Path, decoder: str, cifar: str, imagenet: str) -> None:
    path = cifar if decoder == "simple" else imagenet
    theirs, ours = tmp_path / "theirs.npz", tmp_path / "ours.npz"
    script = tmp_path / "script.py"
    script.write_text(REFERENCE)
    assert FFCV is not None
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    processes.run([FFCV, script, path, decoder, theirs], check=True, env=bare)
    done = run_script(tmp_path, REFERENCE, path, decoder, str(ours))
    assert done.returncode == 0, done.stderr
    with np.load(theirs) as loaded, np.load(ours) as other:
        assert len(loaded.files) == len(other.files) == 4
        for name in loaded.files:
            assert loaded[name].dtype == other[name].dtype
            assert loaded[name].shape == other[name].shape
        assert np.array_equal(loaded["arr_1"], other["arr_1"])
        assert np.array_equal(loaded["arr_3"], other["arr_3"])
        apart = np.abs(loaded["arr_0"].astype(int) - other["arr_0"])
        assert apart.max() <= (0 if decoder == "simple" else 1)
        assert np.abs(loaded["arr_2"] - other["arr_2"]).max() <= (0 if decoder == "simple" else 0.02)


@pytest.mark.reference
@pytest.mark.skipif(not FFCV, reason="set BATCHPLANT_FFCV_PYTHON to a Python that has FFCV")
def test_ffcv_reads_what_the_mirror_writes(tmp_path: Path) -> None:
    path = tmp_path / "all.beton"
    DatasetWriter(str(path), everything(), num_workers=2).from_indexed_dataset(Everything())
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom ffcv.loader import Loader\nfrom ffcv.fields import JSONField\n"
        "for image, label, score, blob, array, tensor, meta in Loader(sys.argv[1], 20, num_workers=1):\n"
        "    assert (image[:, 2, 2, 2] == label[:, 0]).all() and (score == label / 2).all()\n"
        "    assert (array[:, 1, 1] == label[:, 0]).all() and (tensor[:, 1] == label[:, 0]).all()\n"
        "    assert [one['number'] for one in JSONField.unpack(meta)] == label[:, 0].tolist()\n"
        "print('same')\n"
    )
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = processes.run([FFCV, script, path], capture_output=True, text=True, env=bare)
    assert done.stdout.strip().endswith("same"), done.stderr


ORPHANS = """
import os, sys, threading, time
from batchplant.ffcv.fields import IntField
from batchplant.ffcv.writer import DatasetWriter
class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        os.write(1, b"ready\\n")
        time.sleep(3600)
def write():
    DatasetWriter(sys.argv[1], {"x": IntField()}, num_workers=3).from_indexed_dataset(Slow(), chunksize=5)
if sys.argv[2] == "main":
    write()
else:
    threading.Thread(target=write).start()
"""


@pytest.mark.parametrize("thread", ["other", *exhaustive("main")])
def test_workers_end_with_a_writer_that_is_killed(tmp_path: Path, thread: str) -> None:
    command = [sys.executable, "-c", ORPHANS, str(tmp_path / "t.beton"), thread]
    with processes.start(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["ready\n"] * 3
        process.kill()
        # Ends when the last of those that have it open is gone.
        assert process.stdout.read() == ""
