"""tf.audio: WAV files to samples and back."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from ...codecs.media import wav
from ...codecs.media.audio import limit
from ...errors import DecodeError, OptionError, SchemaError
from .values import String, Tensor, as_bytes, tensor

__all__ = ["decode_wav", "encode_wav"]


class DecodeWav(NamedTuple):
    """``audio``: float32 (samples, channels), from -1 to 1."""

    audio: Any
    sample_rate: Any


def decode_wav(
    contents: Any, desired_channels: Any = -1, desired_samples: Any = -1, name: Any = None
) -> DecodeWav:
    """The samples of a WAV file of plain samples.

    More channels than wanted are left out, and for fewer the last is repeated; samples are cut off, or
    filled up with zeros.
    """
    channels, samples = int(desired_channels), int(desired_samples)
    if channels < -1 or channels == 0 or samples < -1:
        raise OptionError(
            "desired_channels and desired_samples are numbers from 1 on, or -1 for what is there"
        )
    data = memoryview(as_bytes(contents))
    if bytes(data[:4]) != b"RIFF" or bytes(data[8:12]) != b"WAVE":
        raise DecodeError("these bytes are not a WAV file")
    found = wav.parse(data)
    if found is None:
        raise DecodeError("a WAV file of packed samples; plain ones are decoded here")
    wanted = found.channels if channels < 0 else channels
    frames = found.frames if samples < 0 else samples
    if frames * wanted > limit():
        raise OptionError(f"{frames} samples of {wanted} channels are more than may be decoded at once")
    audio = wav.read(data, found, 0, min(frames, found.frames), np.float32)
    if wanted < found.channels:
        audio = audio[:, :wanted]
    elif wanted > found.channels:
        audio = np.concatenate([audio, np.repeat(audio[:, -1:], wanted - found.channels, axis=1)], axis=1)
    if frames > len(audio):
        audio = np.concatenate([audio, np.zeros((frames - len(audio), wanted), dtype=np.float32)])
    rate = np.array(found.rate, dtype=np.int32)
    return DecodeWav(np.ascontiguousarray(audio).view(Tensor), rate.view(Tensor))


def encode_wav(audio: Any, sample_rate: Any, name: Any = None) -> String:
    """A WAV file of 16-bit samples out of float32 (samples, channels), cut off at -1 and 1."""
    samples = np.asarray(tensor(audio))
    rate = int(sample_rate)
    if samples.ndim != 2 or not 0 < samples.shape[1] < 1 << 16:
        raise SchemaError(f"samples have the shape (samples, channels), not {samples.shape}")
    if samples.dtype != np.float32:
        raise SchemaError(f"samples are float32, not {samples.dtype}")
    if not 0 < rate < 1 << 31:
        raise OptionError(f"a sample rate of {rate} is none")
    wide = samples.astype(np.float64) * 32768.0
    # Halves are rounded away from zero, as C does.
    rounded = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    body = np.nan_to_num(np.clip(rounded, -32768, 32767)).astype("<i2").tobytes()
    channels = samples.shape[1]
    if len(body) + 36 > 0xFFFFFFFF:
        raise SchemaError("a WAV file holds at most 4 GiB")
    form = struct.pack("<HHIIHH", wav.PCM, channels, rate, rate * channels * 2 & 0xFFFFFFFF, channels * 2, 16)
    head = struct.pack("<4sI4s4sI", b"RIFF", len(body) + 36, b"WAVE", b"fmt ", len(form)) + form
    return String(head + struct.pack("<4sI", b"data", len(body)) + body)
