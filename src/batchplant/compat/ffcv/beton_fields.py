"""Fields of a sample with their decoders, and the structs of a .beton file."""

from __future__ import annotations

import functools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from ... import _native, ops
from ...codecs.media import image as images
from ...codecs.media.image_rules import ImageOptions
from ...errors import DecodeError, EncodeError, OptionError
from ...interop.torch import numpy_dtype
from ...ops.base import F64, Batch, Draws, Op, Spec
from ...schema.columns import I32, I64, AnyArray, AnyDType
from .operations import AllocationQuery, Builtin, Operation, State, interpreted

# The arguments of a field as the file stores them.
ARG_TYPE = np.dtype([("", "<u1", 1024)])

DType = AnyDType
# Returns a pointer and the bytes at it.
Malloc = Callable[[int], tuple[int, AnyArray]]
# Returns the bytes at a pointer.
Read = Callable[[Any], AnyArray]


class Field(ABC):
    """Writes one value of every sample and names the decoder that reads it."""

    @property
    @abstractmethod
    def metadata_type(self) -> DType:
        """Type of the field's entry in the table of samples."""

    @staticmethod
    @abstractmethod
    def from_binary(binary: AnyArray) -> Field:
        """Return the field that ``to_binary`` described."""

    @abstractmethod
    def to_binary(self) -> Any:
        """Return the field's arguments as an ARG_TYPE."""

    @abstractmethod
    def encode(self, destination: AnyArray, field: Any, malloc: Malloc) -> None:
        """Fill a value's entry of the table; ``malloc(size)`` returns a pointer and the bytes at it."""

    @abstractmethod
    def get_decoder_class(self) -> type[Operation]:
        """Return the decoder of pipelines that name none."""


class _FieldWithoutArguments(Field):
    @classmethod
    def from_binary(cls, binary: AnyArray) -> Field:
        return cls()

    def to_binary(self) -> Any:
        return np.zeros(1, dtype=ARG_TYPE)[0]


class Decoder(Builtin):
    """A Builtin at the start of a pipeline."""

    def fill(self, destination: AnyArray, rows: AnyArray, indices: AnyArray, read: Read) -> None:
        """Decode samples from their rows of the table; ``read`` returns the bytes at a pointer."""
        raise NotImplementedError

    def generate_code(self) -> Callable[..., Any]:
        """Return a function of (sample numbers, memory, the field's table, the memory manager's state)."""
        memory_read = self.memory_read

        def decode(indices: Any, destination: Any, metadata: Any, storage_state: Any) -> Any:
            batch = destination[: len(indices)]
            self.fill(batch, metadata[indices], indices, lambda ptr: memory_read(ptr, storage_state))
            return batch

        return interpreted(decode)


class BasicDecoder(Decoder):
    """Numbers as an array of shape (batch, 1)."""

    dtype: ClassVar[Any] = None

    def as_op(self, tensors: bool) -> Op:
        return _Numbers(self.dtype)

    def fill(self, destination: AnyArray, rows: AnyArray, indices: AnyArray, read: Read) -> None:
        destination[:] = rows.reshape(-1, 1)

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        return State(True, previous_state.device, (1,), self.dtype), AllocationQuery((1,), self.dtype)


class _Numbers(Op):
    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def infer(self, spec: Spec) -> Spec:
        return Spec(self.dtype, (1,))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return np.asarray(batch).astype(self.dtype, copy=False).reshape(-1, 1)


class IntDecoder(BasicDecoder):
    """Whole numbers, int64."""

    dtype = np.dtype("<i8")


class FloatDecoder(BasicDecoder):
    """Real numbers, float64."""

    dtype = np.dtype("<f8")


class _NumberField(_FieldWithoutArguments):
    decoder_class: ClassVar[type[BasicDecoder]]

    @property
    def metadata_type(self) -> DType:
        return self.decoder_class.dtype

    def encode(self, destination: AnyArray, field: Any, malloc: Malloc) -> None:
        destination[0] = field

    def get_decoder_class(self) -> type[Operation]:
        return self.decoder_class


class FloatField(_NumberField):
    """A real number, float64."""

    decoder_class = FloatDecoder


class IntField(_NumberField):
    """A whole number, int64."""

    decoder_class = IntDecoder


class BytesDecoder(Decoder):
    """Bytes as an array of shape (batch, longest in the file), padded with zeros."""

    def _longest(self) -> int:
        return int(self.metadata["size"].max(initial=0))

    def as_op(self, tensors: bool) -> Op:
        return ops.Pad(self._longest())

    def fill(self, destination: AnyArray, rows: AnyArray, indices: AnyArray, read: Read) -> None:
        destination[:] = 0
        for cell, row in zip(destination, rows, strict=True):
            if row["size"]:
                cell[: int(row["size"])] = read(row["ptr"])

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        shape, dtype = (self._longest(),), np.dtype("<u1")
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)


def as_uint8(value: AnyArray) -> AnyArray:
    """Return an array of numbers from 0 to 255 as bytes; EncodeError for others, which FFCV truncates."""
    if value.dtype == np.uint8:
        return value
    with np.errstate(invalid="ignore"):
        data = value.astype(np.uint8)
    if not np.array_equal(data, value):
        raise EncodeError(
            f"a BytesField takes whole numbers from 0 to 255, and this {value.dtype} array has others"
        )
    return data


class BytesField(_FieldWithoutArguments):
    """Bytes: samples give one-dimensional arrays of whole numbers from 0 to 255."""

    @property
    def metadata_type(self) -> DType:
        return np.dtype([("ptr", "<u8"), ("size", "<u8")])

    def encode(self, destination: AnyArray, field: Any, malloc: Malloc) -> None:
        value = np.frombuffer(field, np.uint8) if isinstance(field, bytes) else np.asarray(field)
        data = as_uint8(value).reshape(-1)
        destination["ptr"], memory = malloc(data.size)
        memory[:] = data
        destination["size"] = data.size

    def get_decoder_class(self) -> type[Operation]:
        return BytesDecoder


ENCODING = "utf8"
SEPARATOR = "\0"


class JSONField(BytesField):
    """Any JSON value. Batches hold its text as bytes: ``JSONField.unpack(batch)`` parses it."""

    def encode(self, destination: AnyArray, field: Any, malloc: Malloc) -> None:
        super().encode(destination, (json.dumps(field) + SEPARATOR).encode(ENCODING), malloc)

    @staticmethod
    def unpack(batch: Any) -> Any:
        """Return the values of a batch as a list; for the row of one sample, its value."""
        rows = batch.cpu().numpy() if isinstance(batch, torch.Tensor) else np.asarray(batch)
        texts = [
            row.tobytes().partition(SEPARATOR.encode())[0].decode(ENCODING) for row in np.atleast_2d(rows)
        ]
        values = [json.loads(text) for text in texts]
        return values[0] if rows.ndim == 1 else values


NDArrayArgsType = np.dtype([("shape", "<u8", 32), ("type_length", "<u8")])


class NDArrayDecoder(Decoder):
    """Stacks arrays."""

    def as_op(self, tensors: bool) -> Op:
        return _Identity()

    def fill(self, destination: AnyArray, rows: AnyArray, indices: AnyArray, read: Read) -> None:
        for cell, ptr in zip(destination, rows, strict=True):
            cell[...] = read(ptr).view(self.field.dtype).reshape(self.field.shape)

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        shape, dtype = self.field.shape, self.field.dtype
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)


class _Identity(Op):
    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return batch


class NDArrayField(Field):
    """Arrays of one dtype and shape."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = tuple(int(size) for size in shape)
        self.element_size = self.dtype.itemsize * int(np.prod(self.shape))

    @property
    def metadata_type(self) -> DType:
        return np.dtype("<u8")

    @staticmethod
    def from_binary(binary: AnyArray) -> Field:
        head = binary[: NDArrayArgsType.itemsize].view(NDArrayArgsType)[0]
        text = binary[NDArrayArgsType.itemsize :][: int(head["type_length"])].tobytes()
        [(_, dtype)] = json.loads(text)
        return NDArrayField(np.dtype(dtype), tuple(np.trim_zeros(head["shape"], "b").tolist()))

    def to_binary(self) -> Any:
        text = json.dumps(self.dtype.descr).encode()
        head = np.zeros(1, dtype=NDArrayArgsType)
        head["shape"][0, : len(self.shape)], head["type_length"] = self.shape, len(text)
        arguments = np.zeros(1, dtype=ARG_TYPE)[0]
        arguments[0][: head.nbytes + len(text)] = np.frombuffer(head.tobytes() + text, dtype=np.uint8)
        return arguments

    def fit(self, value: object) -> AnyArray:
        """Return the value as an array of this field; FFCV checks the number of bytes only."""
        array = np.asarray(value)
        if array.dtype != self.dtype or array.size != np.prod(self.shape):
            raise OptionError(
                f"the field holds {self.dtype} {self.shape}, and this is {array.dtype} {array.shape}"
            )
        return array.reshape(self.shape)

    def encode(self, destination: AnyArray, field: Any, malloc: Malloc) -> None:
        destination[0], memory = malloc(self.element_size)
        memory[:] = np.ascontiguousarray(self.fit(field)).reshape(-1).view(np.uint8)

    def get_decoder_class(self) -> type[Operation]:
        return NDArrayDecoder


class TorchTensorField(NDArrayField):
    """Tensors of one dtype and shape."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        stored = numpy_dtype(dtype)
        if stored is None:
            raise OptionError(f"NumPy has no {dtype}, so the file cannot hold it; view it as another dtype")
        super().__init__(stored, shape)


IMAGE_MODES = {"jpg": 0, "raw": 1}
# A smart_threshold that no image exceeds.
UNLIMITED_BYTES = 1 << 62


def encode_jpeg(numpy_image: AnyArray, quality: int) -> AnyArray:
    """Encode RGB pixels as a JPEG."""
    return np.frombuffer(_native.jpeg_encode(np.ascontiguousarray(numpy_image), int(quality)), np.uint8)


def resizer(image: AnyArray, target_resolution: int | None) -> AnyArray:
    """Shrink an image whose longer side exceeds the target."""
    return images.fit(image, target_resolution)


def get_random_crop(
    height: int, width: int, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a random crop, drawn with ``np.random``."""
    for _ in range(10):
        area = height * width * np.random.uniform(scale[0], scale[1])
        aspect = np.exp(np.random.uniform(np.log(ratio[0]), np.log(ratio[1])))
        wide, high = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top, left = np.random.randint(height - high + 1), np.random.randint(width - wide + 1)
            return int(top), int(left), int(high), int(wide)
    wide = min(width, round(height * max(ratio)))
    high = min(height, round(width / min(ratio)))
    return (height - high) // 2, (width - wide) // 2, high, wide


def get_center_crop(height: int, width: int, _: object, ratio: float) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of the central square, ``ratio`` of the shorter side wide."""
    side = int(ratio * min(height, width))
    return (height - side) // 2, (width - side) // 2, side, side


class VaryingSizeError(OptionError, TypeError):
    """The images of a file are not of one size; a TypeError, as in FFCV."""


@functools.cache
def _engine(process: int) -> _native.Engine:
    """Return an engine for users who call a decoder's function themselves; threads do not survive a fork."""
    return _native.Engine(1)


class SimpleRGBImageDecoder(Decoder):
    """Decodes images in their own size, which all images of the file must share."""

    def _size(self) -> tuple[int, int]:
        sizes = [self.metadata[side] for side in ("height", "width")]
        smallest = [lengths.min(initial=65535) for lengths in sizes]
        largest = [lengths.max(initial=0) for lengths in sizes]
        if len(self.metadata) and smallest != largest:
            raise VaryingSizeError(
                f"the images of this file are from {smallest[1]}×{smallest[0]} to {largest[1]}×{largest[0]}; "
                "SimpleRGBImageDecoder needs one size: use RandomResizedCropRGBImageDecoder or "
                "CenterCropRGBImageDecoder"
            )
        return int(largest[0]), int(largest[1])

    def as_op(self, tensors: bool) -> Op:
        self._size()
        return ops.Decode()

    def fill(self, destination: AnyArray, rows: AnyArray, indices: AnyArray, read: Read) -> None:
        cells = [np.ascontiguousarray(read(ptr)) for ptr in rows["data_ptr"]]
        shape = np.stack([rows["height"], rows["width"], np.full(len(rows), 3)], axis=1).astype(np.int32)
        raw = (rows["mode"] == IMAGE_MODES["raw"])[:, None]
        ids = np.asarray(indices, dtype=np.int64)
        op: Any = self.as_op(False)
        boxes = op.boxes(shape[:, :2], Draws(int(np.random.randint(2**31)), 0, ids, type(self).__name__))
        base, sizes = np.arange(len(cells), dtype=np.int32), np.array([len(cell) for cell in cells], np.int64)
        status, errors, _ = _engine(os.getpid()).decode(
            cells, base, np.zeros(len(cells), np.int64), sizes, np.where(raw, shape, 0).astype(np.int32),
            boxes, None, destination, layout="nhwc", filter="area", dct="fast",
        )  # fmt: skip
        for row in np.flatnonzero(status)[:1]:
            reason = errors[0][1] if errors else "the image cannot be decoded as RGB"
            raise DecodeError(reason, sample=int(ids[errors[0][0] if errors else row]))

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        shape, dtype = (*self._size(), 3), np.dtype("<u1")
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)


class ResizedCropRGBImageDecoder(SimpleRGBImageDecoder):
    """Decodes a part of every image, resized; subclasses choose it with ``get_crop_generator``.

    ``output_size`` may be changed between epochs, for training at a growing resolution.
    """

    scale: Any = None
    ratio: Any = None

    def __init__(self, output_size: Sequence[int]) -> None:
        self.output_size = output_size

    def _size(self) -> tuple[int, int]:
        return int(self.output_size[0]), int(self.output_size[1])

    @property
    @abstractmethod
    def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
        """Return a function of (height, width, scale, ratio) that returns (top, left, height, width)."""

    def as_op(self, tensors: bool) -> Op:
        crop = self.get_crop_generator
        if crop is get_random_crop:
            return ops.RandomResizedCrop(self._size(), self.scale, self.ratio, filter="area")
        if crop is get_center_crop:
            return ops.CenterCrop(self._size(), self.ratio, filter="area")
        return _UserCrop(self._size(), crop, self.scale, self.ratio)


class _UserCrop(ops.ImageDecoder):
    """Decoder whose crops a user's function chooses."""

    filter = "area"

    def __init__(self, size: tuple[int, int], crop: Callable[..., Any], scale: Any, ratio: Any) -> None:
        self.size, self.crop, self.scale, self.ratio = size, crop, scale, ratio

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        crops = [self.crop(int(high), int(wide), self.scale, self.ratio) for high, wide in sizes]
        top, left, high, wide = np.array(crops, dtype=np.float64).reshape(-1, 4).T
        return np.stack([left, top, left + wide, top + high], axis=1)


class RandomResizedCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Decodes a random part of random area (``scale``) and aspect (``ratio``), resized."""

    def __init__(
        self,
        output_size: Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (0.75, 4 / 3),
    ) -> None:
        super().__init__(output_size)
        self.scale, self.ratio = scale, ratio

    @property
    def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
        return get_random_crop


class CenterCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Decodes the central square, ``ratio`` of the shorter side wide, resized."""

    def __init__(self, output_size: Sequence[int], ratio: float) -> None:
        super().__init__(output_size)
        self.ratio = ratio

    @property
    def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
        return get_center_crop


class RGBImageField(_FieldWithoutArguments):
    """RGB images: arrays (height, width, 3) of uint8, or PIL images.

    write_mode: ``raw``, ``jpg``, ``smart`` (JPEG where the raw pixels exceed ``smart_threshold`` bytes) or
    ``proportion`` (JPEG with probability ``compress_probability``). max_resolution bounds the longer side.
    """

    def __init__(
        self,
        write_mode: str = "raw",
        max_resolution: int | None = None,
        smart_threshold: int | None = None,
        jpeg_quality: int = 90,
        compress_probability: float = 0.5,
    ) -> None:
        self.write_mode, self.smart_threshold, self.max_resolution = (
            write_mode, smart_threshold, max_resolution,
        )  # fmt: skip
        self.jpeg_quality, self.proportion = int(jpeg_quality), compress_probability

    def options(self) -> ImageOptions:
        """Return the same options for batchplant's writer."""
        return ImageOptions(
            write_mode=self.write_mode,
            max_resolution=self.max_resolution,
            jpeg_quality=self.jpeg_quality,
            smart_threshold=UNLIMITED_BYTES if self.smart_threshold is None else int(self.smart_threshold),
            compress_probability=self.proportion,
        )

    @property
    def metadata_type(self) -> DType:
        return np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])

    def get_decoder_class(self) -> type[Operation]:
        return SimpleRGBImageDecoder

    def encode(self, destination: AnyArray, image: Any, malloc: Malloc) -> None:
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise OptionError(
                f"an RGB image is uint8 (height, width, 3), and this is {pixels.dtype} {pixels.shape}"
            )
        options = self.options()
        pixels = resizer(pixels, options.max_resolution)
        jpeg = {
            "jpg": True,
            "raw": False,
            "smart": pixels.nbytes > options.smart_threshold,
            "proportion": np.random.rand() < options.compress_probability,
        }[self.write_mode]
        data = encode_jpeg(pixels, self.jpeg_quality) if jpeg else np.ascontiguousarray(pixels).reshape(-1)
        destination["mode"] = IMAGE_MODES["jpg" if jpeg else "raw"]
        destination["height"], destination["width"] = pixels.shape[:2]
        destination["data_ptr"], memory = malloc(data.nbytes)
        memory[:] = data


CURRENT_VERSION = 2

HeaderType = np.dtype(
    [
        ("version", "<u2"),
        ("num_fields", "<u2"),
        ("page_size", "<u4"),
        ("num_samples", "<u8"),
        ("alloc_table_ptr", "<u8"),
    ],
    align=True,
)
ALLOC_TABLE_TYPE = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
FieldDescType = np.dtype(
    [("type_id", "<u1"), ("name", ("<u1", 16)), ("arguments", ("<u1", (1024,)))], align=True
)

CUSTOM = 255
TYPE_ID_HANDLER: dict[int, Any] = {
    CUSTOM: None,
    0: FloatField,
    1: IntField,
    2: RGBImageField,
    3: BytesField,
    4: NDArrayField,
    5: JSONField,
    6: TorchTensorField,
}


def get_handlers(field_descriptors: Any) -> list[Field | None]:
    """Return the field of every descriptor; None for a custom one."""
    handlers = [TYPE_ID_HANDLER[int(descriptor["type_id"])] for descriptor in field_descriptors]
    return [
        None if handler is None else handler.from_binary(descriptor["arguments"])
        for handler, descriptor in zip(handlers, field_descriptors, strict=True)
    ]


def get_metadata_type(handlers: Iterable[Field]) -> AnyDType:
    """Return the type of a sample's row in the table, all fields together."""
    return np.dtype([("", handler.metadata_type) for handler in handlers], align=True)
