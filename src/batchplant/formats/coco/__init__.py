"""COCO: annotations in one JSON file, images in a folder beside it.

``annotations/instances_val2017.json`` beside ``val2017/``; a sample is an image with its annotations. The
file names images (``images``), classes (``categories``) and what lies in the images (``annotations``):
boxes, outlines, keypoints, captions, panoptic segments. A class is its place among the categories here, from
0 on; the ids that it has in the file are ``ids`` of the field ``labels``. Keys that COCO does not know are
``image_extra`` and ``object_extra``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...codecs.media import image, rle
from ...codecs.nested import json_text
from ...data.writer import WriteOptions
from ...errors import (
    BatchplantError,
    DamagedError,
    NotFoundError,
    OptionError,
    Problem,
    SchemaError,
    on_error,
)
from ...schema import Boxes, Field, Image, Int, Json, Keypoints, Labels, List, Polygons, Schema, Tensor, Text
from ...schema.columns import I64, AnyArray, Columns, Ragged, starts_of
from ...storage import absolute, index, is_below, join, like, open_source, parent, tree
from ..base.detection import (
    FIELDS,
    DetectionReader,
    DetectionWriter,
    Entry,
    left_out,
    ragged,
    with_boxes,
)
from ..base.folders.files import Files, ZipFiles, open_files, open_member
from ..base.folders.media import COCO, annotated, coco_files, is_coco, zipped_coco
from ..base.format import Capabilities, Format, Probe
from .scan import IMAGE_KEYS, LIST, OBJECT, OBJECT_KEYS, REALS, TOP, fits, scan

# -- reader -------------------------------------------------------------------------------------------

MASKS = ("classes", "instances")
# Under which name our writer leaves what the fields were, in the file's own notes.
NOTE = "batchplant"
# Fields that hold the keys which have no field of their own.
EXTRA = ("image_extra", "object_extra")


class CocoReader(DetectionReader):
    """Reads COCO annotations and the images beside them, also in the archives that COCO publishes.

    ``images``: the folder of the images (default: found by the first of them). ``annotations``: which file,
    where the path is a folder with several. ``masks``: add a field ``mask`` that is painted with the objects:
    ``classes`` (class + 1) or ``instances`` (number of the object + 1). ``panoptic``: the folder of the
    panoptic images. ``float64``: which of boxes, area and keypoints are float64 even where float32 keeps
    all digits of the file. ``index``: see the guide on index files.
    """

    widens_floats = True

    def __init__(
        self,
        path: str,
        *,
        images: str | None = None,
        annotations: str | None = None,
        masks: str | None = None,
        panoptic: str | None = None,
        float64: Sequence[str] = (),
        index: str = "auto",
    ) -> None:
        self.path = path
        self._float64 = {float64} if isinstance(float64, str) else set(float64)
        if not self._float64 <= set(REALS):
            raise OptionError(f"float64 names some of {', '.join(REALS)}, not {float64!r}", path=path)
        if masks is not None and masks not in MASKS:
            raise OptionError(f"masks is {' or '.join(MASKS)}, not {masks!r}", path=path)
        self._masks = masks
        self._media, self._columns = {}, Columns()
        archive, file = self._annotations(annotations)
        self._source = open_source(file) if archive is None else open_member(archive, file)
        with on_error(self._source.close, path=self._source.path):
            # A member of an archive is unpacked, and has no file to put an index beside.
            self._load(index if archive is None else "memory")
            self._root = parent(absolute(file if archive is None else archive))
            names = self._file_names("names", "name_offsets")
            below = self._folder(images, file, names, "images")
            optional = {}
            if "panoptic" in self._facts["has"]:
                files = [name or None for name in self._file_names("panoptic", "panoptic_offsets")]
                named = [name for name in files if name is not None]
                optional["panoptic"] = self._folder(panoptic, file, named, "panoptic"), files
            self._set_images(below, names, **optional)
            self._set_fields()

    # -- opening ---------------------------------------------------------------------------------------

    def _annotations(self, option: str | None) -> tuple[str | None, str]:
        """Return the file of annotations; or an archive, and the member that it is."""
        if not tree.is_folder(self.path):
            if option is not None:
                raise OptionError("this is a file; annotations chooses one in a folder", path=self.path)
            return None, self.path
        names = Probe(self.path).names
        zipped = zipped_coco(self.path, names)
        if option is not None:
            for name in (option, f"annotations/{option}"):
                if is_below(option) and tree.is_file(join(self.path, name)):
                    return None, join(self.path, name)
                if name in zipped:
                    return join(self.path, zipped[name]), name
            raise NotFoundError(f"there is no file {option!r} of annotations", path=self.path)
        candidates = [*coco_files(self.path, names), *zipped]
        if not candidates:
            raise NotFoundError("there are no annotations of COCO (.json) in this folder", path=self.path)
        if len(candidates) > 1:
            shown = ", ".join(candidates[:6]) + ", …" * (len(candidates) > 6)
            raise OptionError(
                f"there are {len(candidates)} files of annotations: open one of them, or choose with "
                f"annotations={os.path.basename(candidates[0])!r} (--option annotations=…): {shown}",
                path=self.path,
            )
        [name] = candidates
        return (join(self.path, zipped[name]), name) if name in zipped else (None, join(self.path, name))

    def _load(self, mode: str) -> None:
        loaded = index.load(self._source, "coco", scan, mode=mode, version=2, check=fits)
        self._arrays, self._facts = loaded.arrays, loaded.facts
        self._counts: I64 = self._arrays["counts"]
        self._firsts = starts_of(self._counts)

    def _file_names(self, name: str, offsets: str) -> list[str]:
        letters, ends = self._arrays[name].tobytes(), self._arrays[offsets].tolist()
        if len(ends) != len(self._counts) + 1:
            raise DamagedError(f"the index does not know the files of all images ({name})")
        return [os.fsdecode(letters[a:b]) for a, b in itertools.pairwise(ends)]

    def _folder(self, option_value: str | None, file: str, names: Sequence[str], option: str) -> Files:
        """The folder in which files lie: the one that is asked for, or the first that has one of them."""
        root = self._root
        above = parent(root) if os.path.basename(root.rstrip("/")) == "annotations" else root
        if option_value is not None:
            asked_folder = like(file, option_value)
            # What is named as it lies here comes first, then what is named as it lies beside the file.
            chosen = (
                asked_folder
                if "://" in option_value or tree.is_folder(asked_folder)
                else join(above, option_value)
            )
            if not tree.is_folder(chosen):
                raise NotFoundError(f"{option}: there is no folder {option_value!r}", path=file)
            return open_files(absolute(chosen))
        stem = os.path.splitext(os.path.basename(file))[0]
        # instances_val2017 -> val2017
        split = stem.rpartition("_")[2]
        first = next((name for name in names if is_below(name)), None)
        if option == "images":
            tried = [join(above, split), join(above, "images", split), join(above, "images"), above, root]
        else:
            tried = [join(root, stem), join(above, stem), join(above, f"panoptic_{split}"), root]
        for archive in (f"{folder}.zip" for folder in tried[:3]):
            if first is not None and tree.is_file(archive):
                below = ZipFiles(archive, f"{os.path.basename(archive)[:-4]}/")
                if below.has(first):
                    return below
                below.close()
        for folder in tried:
            if first is None or tree.is_file(join(folder, first)):
                return open_files(absolute(folder))
        if any(tree.is_folder(folder) for folder in tried[:-2]):
            # The first is missing, and others may be there: reading one that is missing raises the error.
            return open_files(absolute(next(folder for folder in tried if tree.is_folder(folder))))
        looked = ", ".join(
            dict.fromkeys(os.path.relpath(path, above) if "://" not in path else path for path in tried)
        )
        raise NotFoundError(
            f"the images are not found ({first} is in none of {looked}): say where with {option}=FOLDER "
            f"(--option {option}=FOLDER)",
            path=file,
        )

    def _set_fields(self) -> None:
        has, arrays, counts = set(self._facts["has"]), self._arrays, self._counts
        categories = self._facts["categories"]
        ids = np.array([category["id"] for category in categories], dtype=np.int64)
        kinds = set(np.unique(arrays["text_kind"]).tolist())
        noted = self._noted_fields()
        fields: dict[str, Field] = {"image": self._look(), "file_name": Text(), "image_id": Int()}
        self._columns["image_id"] = arrays["image_id"]
        objects = has & {"bbox", "category_id", "segmentation", "keypoints"} or "panoptic" in has
        if objects or "labels" in noted:
            boxes, area = (self._reals(name, noted) for name in ("boxes", "area"))
            fields["boxes"] = Boxes("xywh", dtype=boxes.dtype.name)
            names = tuple(str(category.get("name", category["id"])) for category in categories)
            fields["labels"] = Labels(names, ids=tuple(ids.tolist())) if names else Labels()
            for name, kind in (("area", area.dtype.name), ("iscrowd", "bool"), ("ids", "int64")):
                fields[name] = Tensor(kind, (None,))
            self._columns["boxes"] = ragged(boxes.reshape(-1, 4), counts)
            self._columns["labels"] = ragged(
                _category_numbers(arrays["category"], ids, bool(categories)), counts
            )
            self._columns["area"] = ragged(area, counts)
            self._columns["iscrowd"] = ragged(arrays["crowd"].view(np.bool_), counts)
            self._columns["ids"] = ragged(arrays["id"], counts)
            if LIST in kinds or "polygons" in noted:
                fields["polygons"] = Polygons()
            if OBJECT in kinds or "rle" in noted:
                fields["rle"] = List(Text())
            points = int(self._facts["points"]) or getattr(noted.get("keypoints"), "points", 0)
            if points:
                keypoints = self._reals("keypoints", noted)
                if not self._facts["points"]:
                    keypoints = np.zeros(len(arrays["id"]) * points * 3, keypoints.dtype)
                names = _point_names(categories, points)
                fields["keypoints"] = Keypoints(points, names, dtype=keypoints.dtype.name)
                self._columns["keypoints"] = ragged(keypoints.reshape(-1, points, 3), counts)
        if "caption" in has or "captions" in noted:
            fields["captions"] = List(Text())
        if "panoptic" in has:
            fields["panoptic"] = self._look("panoptic", mask=True)
        # Our writer counts from 1.
        counted = np.array_equal(arrays["id"], np.arange(1, len(arrays["id"]) + 1))
        self._own_ids = "caption" in has and "boxes" not in fields and not counted
        extra = [name for name in EXTRA if arrays[f"{name}_size"].any()]
        if self._own_ids:
            extra.append("object_extra")
        fields |= {name: Json() for name in EXTRA if name in extra or name in noted}
        if self._masks is not None:
            deep = (len(categories) if self._masks == "classes" else int(counts.max(initial=0))) > 255
            fields["mask"] = Image(mode="I;16" if deep else "L", mask=True)
        self._sizes = np.stack([arrays["width"], arrays["height"]], axis=1)
        # In the order, and with those fields, that our writer was given.
        chosen = [*noted, *extra, "mask"] if noted else list(fields)
        self.schema = with_boxes({name: fields[name] for name in dict.fromkeys(chosen) if name in fields})

    def _noted_fields(self) -> Mapping[str, Field]:
        note = self._facts["info"].get(NOTE)
        with contextlib.suppress(SchemaError):
            return Schema.from_json(note["fields"]) if isinstance(note, dict) and "fields" in note else {}
        return {}

    def _reals(self, name: str, noted: Mapping[str, Field]) -> AnyArray:
        values = self._arrays[name]
        wide = name in self._float64 or getattr(noted.get(name), "dtype", None) == "float64"
        return values.astype(np.float64) if wide else values

    # -- reading ---------------------------------------------------------------------------------------

    def _column(self, name: str, indices: I64) -> Any:
        if name in self._columns or name in self._media:
            return super()._column(name, indices)
        if name in EXTRA:
            return self._extras(name, indices)
        numbers = indices.tolist()
        cells: list[Any] = []
        shapes: list[Any] = []
        texts = self._texts(indices)
        for row, number in enumerate(numbers):
            try:
                if name == "mask":
                    cell, shape = self._mask(number, texts[row])
                    shapes.append(shape)
                elif name == "rle":
                    cell = json_text([self._rle(number, kind, text) for kind, text in texts[row]])
                else:
                    captions = name == "captions"
                    parts = [text if captions or kind == LIST else b"[]" for kind, text in texts[row]]
                    cell = b"[" + b", ".join(parts) + b"]"
                cells.append(cell)
            except BatchplantError as error:
                raise error.at(path=self.path, sample=number, field=name) from None
        return Ragged.from_cells(cells, shapes)

    def _texts(self, indices: I64) -> list[list[tuple[int, bytes]]]:
        """For every sample the kind and the text of the outline, or the caption, of each of its objects."""
        rows, cuts = self._rows_of(indices)
        kinds = self._arrays["text_kind"][rows].tolist()
        parts = list(zip(kinds, self._source_texts("text", rows), strict=True))
        return [parts[a:b] for a, b in itertools.pairwise(cuts)]

    def _rows_of(self, indices: I64) -> tuple[I64, list[int]]:
        """The objects of samples, one after another, and where those of each sample begin among them."""
        firsts, counts = self._firsts[indices], self._counts[indices]
        cuts = starts_of(counts)
        return np.repeat(firsts - cuts[:-1], counts) + np.arange(int(counts.sum())), cuts.tolist()

    def _source_texts(self, name: str, rows: I64) -> list[bytes]:
        """The text of the file from ``name`` on, for these rows."""
        starts, sizes = self._arrays[name][rows], self._arrays[f"{name}_size"][rows].clip(0)
        starts = np.where(sizes > 0, starts, 0)
        if self._source.outside(starts, sizes) is not None:
            raise DamagedError("the index does not fit the file", path=self.path)
        texts = self._source.gather(starts, sizes)
        letters, ends = texts.data.tobytes(), texts.offsets.tolist()
        return [letters[a:b] for a, b in itertools.pairwise(ends)]

    def _extras(self, name: str, indices: I64) -> Ragged:
        if name == "image_extra":
            parts, cuts = self._source_texts(name, indices), list(range(len(indices) + 1))
            known_keys = set(IMAGE_KEYS)
        else:
            rows, cuts = self._rows_of(indices)
            parts, known_keys = self._source_texts(name, rows), set(OBJECT_KEYS)
            if self._own_ids:
                known_keys.remove("id")
                ids = self._arrays["id"][rows].tolist()
                parts = [part or b'{"id": %d}' % number for part, number in zip(parts, ids, strict=True)]
        cells = []
        for number, (a, b) in enumerate(itertools.pairwise(cuts)):
            try:
                documents = [
                    {key: value for key, value in _value(part).items() if key not in known_keys}
                    if part
                    else {}
                    for part in parts[a:b]
                ]
            except BatchplantError as error:
                raise error.at(path=self.path, sample=int(indices[number]), field=name) from None
            cells.append(json_text(documents[0] if name == "image_extra" else documents))
        return Ragged.from_cells(cells)

    def _size(self, sample: int) -> tuple[int, int]:
        assert self._sizes is not None
        return int(self._sizes[sample, 0]), int(self._sizes[sample, 1])

    def _rle(self, sample: int, kind: int, text: bytes) -> str:
        if kind != OBJECT:
            return ""
        width, height = self._size(sample)
        return rle.text_of(_value(text), height, width)

    def _mask(self, sample: int, texts: list[tuple[int, bytes]]) -> tuple[Any, Any]:
        first = int(self._firsts[sample])
        rows = np.arange(first, first + len(texts))
        width, height = self._size(sample)
        if self._masks == "classes":
            ids = np.array([category["id"] for category in self._facts["categories"]], dtype=np.int64)
            values = _category_numbers(self._arrays["category"][rows], ids, bool(len(ids))) + 1
        else:
            values = np.arange(1, len(rows) + 1)
        # Large ones first, so that small ones before them are seen.
        order = np.argsort(-self._arrays["area"][rows], kind="stable").tolist()
        objects = []
        for annotation in order:
            kind, text = texts[annotation]
            rings = _value(text) if kind == LIST else []
            if not all(isinstance(ring, list) for ring in rings):
                raise DamagedError(f"object {annotation}: a segmentation is a list of lists of numbers")
            objects.append((int(values[annotation]), rings, self._rle(sample, kind, text)))
        try:
            canvas = rle.painted(objects, height, width)
        except (TypeError, ValueError):
            raise DamagedError("a segmentation is a list of lists of numbers") from None
        field = self.schema["mask"]
        assert isinstance(field, Image)
        if field.mode == "I;16":
            return image.encode(canvas.astype(np.uint16), "png"), None
        return canvas.tobytes(), (height, width, 1)

    # -- what else there is ----------------------------------------------------------------------------

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        categories = self._facts["categories"]
        info = {name: value for name, value in self._facts["info"].items() if name != NOTE}
        about = {"info": info, "licenses": self._facts["licenses"]}
        about = {name: content for name, content in about.items() if content}
        note = self._facts["info"].get(NOTE)
        noted = note.get("attributes") if isinstance(note, dict) else None
        about |= noted if isinstance(noted, dict) else {}
        about |= self._facts["others"]
        attributes: dict[str, Mapping[str, Any]] = {"": about} if about else {}
        if categories and "labels" in self.schema:
            attributes["labels"] = {"categories": categories}
        return attributes

    def facts(self) -> dict[str, object]:
        return {"objects": len(self._arrays["id"]), "classes": len(self._facts["categories"])}

    def _fingerprint_source(self, fields: Sequence[str]) -> Any:
        return None

    def _no_class(self, row: int, label: int) -> str:
        return f"there is no category {int(self._arrays['category'][row])}"

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        count, *starts = self._facts["orphans"]
        for start in starts:
            yield Problem("an annotation is of an image that is not there", self._source.path, offset=start)
        if count > len(starts):
            yield Problem(
                f"{count - len(starts):,} more annotations of images that are not there", self._source.path
            )
        if self._masks is None and {"polygons", "rle"} & set(self.schema):
            # Reading looks at text only.
            yield from self._bad_outlines()

    def _bad_outlines(self) -> Iterator[Problem]:
        for start in range(0, len(self), 256):
            numbers = np.arange(start, min(start + 256, len(self)))
            for sample, texts in zip(numbers.tolist(), self._texts(numbers), strict=True):
                for number, (kind, text) in enumerate(texts):
                    if kind == LIST and not _is_rings(_value(text)):
                        message = (
                            f"object {number}: a segmentation is rings of three points or more: {text[:40]!r}"
                        )
                        yield Problem(message, self.where(sample), sample, "polygons")

    def close(self) -> None:
        super().close()
        self._source.close()


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"no JSON: {error}") from None


def _is_rings(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(
        isinstance(ring, list) and len(ring) >= 6 and len(ring) % 2 == 0
        and all(isinstance(coordinate, int | float) for coordinate in ring)
        for ring in value
    )  # fmt: skip


def _category_numbers(categories: I64, ids: I64, named: bool) -> I64:
    """Map ids to categories; -1 if unknown. Without categories, the ids stay."""
    if not named:
        return np.maximum(categories, -1)
    order = np.argsort(ids)
    position = np.searchsorted(ids[order], categories).clip(0, len(ids) - 1)
    return np.where(ids[order][position] == categories, order[position], -1)


def _point_names(categories: list[Any], points: int) -> tuple[str, ...]:
    """Return the names of keypoints if all categories with keypoints agree."""
    named = {
        tuple(map(str, category["keypoints"]))
        for category in categories
        if isinstance(category.get("keypoints"), list)
    }
    names = named.pop() if len(named) == 1 else ()
    return names if len(names) == points and len(set(names)) == points else ()


# -- writer -------------------------------------------------------------------------------------------

# What a file of annotations is called by the first of these fields that there is.
KINDS_OF_FILES = {"captions": "captions", "panoptic": "panoptic", "keypoints": "person_keypoints"}
COPIED = 1 << 20


class CocoWriter(DetectionWriter):
    """Writes a folder with ``images/`` and ``annotations/instances.json``.

    ``boxes``: how boxes are meant (xyxy, xywh, cxcywh), where the field is a bare Tensor. ``attributes``:
    what stands in the file besides: ``{"": {"info": …, "licenses": …}, "labels": {"categories": […]}}``.
    """

    boxes = Boxes("xywh")

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        boxes: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._attributes = {name: _parsed(values) for name, values in (attributes or {}).items()}
        super().__init__(path, schema, options, boxes=boxes)

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        if {"captions", "boxes"} <= set(self.schema):
            raise OptionError(
                "captions and boxes stand in files of their own: write them one after another (--fields)",
                path=self.path,
            )
        self._categories = self._given_categories()
        self._images, self._objects = self.partial.spool("images"), self.partial.spool("annotations")
        self._next = int(state["next"]) if state else 1
        # The classes that have keypoints: those of which it is said, else those of which some are there.
        named = {row for row, category in enumerate(self._categories) if category.get("keypoints")}
        self._with_points = named or None
        self._points_seen = set(state["points_seen"] if state else ())

    def _given_categories(self) -> list[dict[str, Any]]:
        """The categories, with the ids and the rest that they had, where they are the same classes."""
        names = self._names_of_classes
        categories = self._attributes.get("labels", {}).get("categories")
        given_names = (
            [str(category.get("name", category.get("id"))) for category in categories]
            if isinstance(categories, list)
            else None
        )
        if categories is not None and given_names == names:
            return list(categories)
        labels = self.schema.get("labels")
        ids = getattr(labels, "ids", None) or range(1, len(names) + 1)
        return [{"id": number, "name": name} for number, name in zip(ids, names, strict=True)]

    def _pointed_categories(self) -> list[dict[str, Any]]:
        points = self.schema.get("keypoints")
        if self._with_points or not isinstance(points, Keypoints) or not points.names:
            return self._categories
        seen = self._points_seen or range(len(self._categories))
        return [
            {**category, "keypoints": list(points.names)} if row in seen else category
            for row, category in enumerate(self._categories)
        ]

    def _state(self) -> dict[str, Any]:
        return {"next": self._next, "points_seen": sorted(self._points_seen)}

    def _put(self, entries: list[Entry]) -> None:
        images, objects = [], []
        for entry in entries:
            number = int(entry.values.get("image_id", entry.number + 1))
            about = {"id": number, "file_name": entry.file, "width": entry.width, "height": entry.height}
            images.append(json_text(_merged_keys(about, entry.values.get("image_extra"))))
            if "captions" in entry.values:
                extras = entry.values.get("object_extra") or [{}] * len(entry.values["captions"])
                for caption, extra in zip(entry.values["captions"], extras, strict=True):
                    about = {"id": extra.get("id", self._next), "image_id": number, "caption": caption}
                    objects.append(json_text(_merged_keys(about, extra)))
                    self._next += 1
            elif "panoptic" in entry.values:
                if entry.values["panoptic"] is not None:
                    about = {"image_id": number, "file_name": entry.values["panoptic"]}
                    segments = b", ".join(self._segments(entry, number, panoptic=True))
                    objects.append(json_text(about)[:-1] + b', "segments_info": [' + segments + b"]}")
            else:
                objects += self._segments(entry, number)
        for spool, lines in ((self._images, images), (self._objects, objects)):
            if lines:
                spool.write((b",\n" if spool.size else b"") + b",\n".join(lines))

    def _segments(self, entry: Entry, image: int, *, panoptic: bool = False) -> list[bytes]:
        values, segments = entry.values, []
        of_objects = ("boxes", "labels", "polygons", "rle", "keypoints")
        count = max((len(values[name]) for name in of_objects if name in values), default=0)
        for row in range(count):
            about: dict[str, Any] = {"id": int(values["ids"][row]) if "ids" in values else self._next}
            self._next += 1
            if not panoptic:
                about["image_id"] = image
            if "labels" in values:
                label = int(values["labels"][row])
                about["category_id"] = self._categories[label]["id"] if self._categories else label
            if "boxes" in values:
                about["bbox"] = [_number(value) for value in values["boxes"][row]]
            if "area" in values:
                about["area"] = _number(values["area"][row])
            elif "boxes" in values:
                about["area"] = float(values["boxes"][row][2]) * float(values["boxes"][row][3])
            about["iscrowd"] = int(values["iscrowd"][row]) if "iscrowd" in values else 0
            if values.get("rle") and values["rle"][row]:
                about["segmentation"] = {"size": [entry.height, entry.width], "counts": values["rle"][row]}
            elif "polygons" in values:
                about["segmentation"] = values["polygons"][row]
            if "keypoints" in values and self._has_points(values, row):
                points = values["keypoints"][row]
                if points.shape[1] == 2:
                    points = np.concatenate([points, np.full((len(points), 1), 2, points.dtype)], axis=1)
                about["keypoints"] = [_number(value) for value in points.reshape(-1)]
                about["num_keypoints"] = int((points[:, 2] > 0).sum())
            extra = values["object_extra"][row] if "object_extra" in values else None
            segments.append(json_text(_merged_keys(about, extra)))
        return segments

    def _has_points(self, values: dict[str, Any], row: int) -> bool:
        """True if an object has keypoints: some are there, or its class has them."""
        label = int(values["labels"][row]) if "labels" in values else 0
        if values["keypoints"][row].any():
            self._points_seen.add(label)
            return True
        return self._with_points is None or label in self._with_points

    def _save_other(self, name: str, file: str, column: Any, row: int, number: int) -> str | None:
        cell = column[row]
        if cell is None:
            return None
        file = file.rpartition(".")[0] + ".png"
        self._save(f"annotations/panoptic/{file}", cell, number)
        return file

    def _finish(self) -> str:
        about = self._attributes.get("", {})
        stored = Schema({name: self._stored(field, name) for name, field in self.schema.items()})
        info = {**dict(about.get("info") or {}), NOTE: {"fields": stored.to_json()}}
        top = [f'"info": {json.dumps(info)}']
        if about.get("licenses"):
            top.append(f'"licenses": {json.dumps(about["licenses"])}')
        for key, value in about.items():
            if key not in TOP:
                top.append(f"{json.dumps(key)}: {json.dumps(value)}")
        top.append(f'"categories": {json.dumps(self._pointed_categories(), ensure_ascii=False)}')
        called = next((kind for field, kind in KINDS_OF_FILES.items() if field in self.schema), "instances")
        target = self._folder / f"annotations/{called}.json"
        target.parent.mkdir(exist_ok=True)
        with open(target, "wb") as out:
            out.write(("{" + ",\n".join(top)).encode())
            for key in ("images", "annotations"):
                spool = self.partial.spool(key)
                out.write(f',\n"{key}": [\n'.encode())
                for start in range(0, spool.size, COPIED):
                    out.write(spool.read_at(min(COPIED, spool.size - start), start))
                out.write(b"\n]")
            out.write(b"}\n")
        return "folder"


def _parsed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes, with lists and objects that another format keeps as their JSON text as what they are."""
    parsed = {}
    for key, value in attributes.items():
        parsed[key] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if isinstance(value, str) and value[:1] in "[{":
            with contextlib.suppress(ValueError, RecursionError):
                parsed[key] = json.loads(value)
    return parsed


def _merged_keys(about: dict[str, Any], extra: dict[str, Any] | None) -> dict[str, Any]:
    return about | {key: value for key, value in (extra or {}).items() if key not in about}


def _number(value: Any) -> int | float:
    """The shortest digits that give the same 32 bits; whole numbers without a point."""
    number = float(str(value))
    return int(number) if number.is_integer() and abs(number) < 1 << 31 else number


# -- format -------------------------------------------------------------------------------------------

HELD = (
    "image", "file_name", "image_id", "boxes", "labels", "area", "iscrowd", "ids", "polygons", "rle",
    "keypoints", "captions", "panoptic", "image_extra", "object_extra",
)  # fmt: skip


def sniff(probe: Probe) -> bool:
    """Lists of images and of annotations in JSON, or a folder with such a file."""
    return probe.ask(annotated) == COCO if probe.folder else is_coco(probe.head)


FORMAT = Format(
    name="coco",
    title="COCO",
    suffixes=(".coco",),
    spec="https://cocodataset.org/#format-data",
    reader=CocoReader,
    writer=CocoWriter,
    sniff=sniff,
    kinds=(Image, Boxes, Labels, Polygons, Keypoints, Tensor, Int, Text, List, Json),
    optional=True,
    fields={name: FIELDS[name] for name in HELD},
    leaves=left_out(HELD),
    folder=None,
    notes="instances, keypoints, captions, panoptic; polygons and run-length masks, painted with masks=",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        metadata=True,
        streaming_write=True,
        splittable=True,
        remote_ranges=True,
        ecosystem=("pycocotools", "torchvision", "Detectron2", "MMDetection", "FiftyOne"),
    ),
)
