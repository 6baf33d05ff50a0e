"""tf.compat.v1: names of TensorFlow 1 that scripts with TFRecord files still use."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from . import data, image, io, train
from .listing import texts
from .records import TFRecordOptions, TFRecordWriter, read_records
from .resize import ResizeMethod, resize


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """The records of one file."""
    if not isinstance(options, TFRecordOptions):
        options = TFRecordOptions(options)
    [name] = texts(path)
    return (bytes(record) for record in read_records(name, options.compression_type))


def _resize(
    images: Any, size: Any, method: Any = ResizeMethod.BILINEAR, align_corners: bool = False, **more: Any
) -> Any:
    """As TensorFlow 1 did it, which took the corner of a pixel for its middle."""
    if align_corners:
        from ...errors import OptionError

        raise OptionError("align_corners=True is not mirrored")
    return resize(images, size, method, half_pixel_centers=False, **more)


class TFRecordCompressionType:
    NONE, ZLIB, GZIP = "", "ZLIB", "GZIP"


_python_io = types.SimpleNamespace(
    TFRecordWriter=TFRecordWriter,
    TFRecordOptions=TFRecordOptions,
    TFRecordCompressionType=TFRecordCompressionType,
    tf_record_iterator=tf_record_iterator,
)
_image = types.SimpleNamespace(**{name: getattr(image, name) for name in image.__all__})
_image.resize = _resize
_image.resize_images = _resize
_image.resize_bilinear = _resize
_image.resize_image_with_crop_or_pad = image.resize_with_crop_or_pad

v1 = types.SimpleNamespace(
    FixedLenFeature=io.FixedLenFeature,
    FixedLenSequenceFeature=io.FixedLenSequenceFeature,
    VarLenFeature=io.VarLenFeature,
    data=data,
    decode_raw=io.decode_raw,
    enable_eager_execution=lambda *args, **named: None,
    enable_v2_behavior=lambda: None,
    image=_image,
    io=types.SimpleNamespace(
        **{**{name: getattr(io, name) for name in io.__all__}, "tf_record_iterator": tf_record_iterator}
    ),
    parse_example=io.parse_example,
    parse_single_example=io.parse_single_example,
    python_io=_python_io,
    train=train,
)
python_io = _python_io
