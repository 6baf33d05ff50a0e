"""Device meshes: which ranks get the same samples, which different ones, and which slices of a sequence.

Meshes of PyTorch, JAX and Megatron are recognised by their attributes; nothing here imports a framework.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import OptionError, listed, near
from .keyed import whole
from .ranks import process_group_rank, rank_and_world_size

I64 = npt.NDArray[np.int64]

# Usual names of axes whose ranks train on different samples.
BATCH_AXES = {
    *("dp", "ddp", "fsdp", "hsdp", "data", "data_parallel", "batch", "replica", "replicate", "shard"),
    *("dp_replicate", "dp_shard"),
}
# Usual names of axes whose ranks hold parts of one model, or of one sequence.
MODEL_AXES = {
    *("tp", "mp", "model", "model_parallel", "tensor", "tensor_parallel"),
    *("pp", "pipe", "pipeline", "pipeline_parallel", "stage"),
    *("cp", "sp", "context", "context_parallel", "seq", "sequence", "sequence_parallel", "ulysses"),
}
# Axes of Megatron's parallel_state, as in get_tensor_model_parallel_rank.
MEGATRON_AXES = {
    "pp": "pipeline_model_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "tp": "tensor_model_parallel",
}


class MeshRank(NamedTuple):
    """Rank of a process among those that get different samples, and the chunks that it gets of a sequence.

    A sequence is cut into ``chunk_count`` chunks of the same length.
    """

    rank: int
    world_size: int
    chunks: tuple[int, ...] = (0,)
    chunk_count: int = 1


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The parallel layout of a run: ``Mesh({"dp": 4, "tp": 2, "cp": 2}, sequence_axis="cp")``.

    axes: sizes of the axes by name, the outermost first, or a torch DeviceMesh, a JAX Mesh or Megatron's
    ``parallel_state``. rank: of this process in the mesh (default: that of the mesh, of torch.distributed or
    of the launcher). batch_axes: axes whose ranks get different samples (default: dp, fsdp, data and other
    usual names); along the other axes, ranks get the same. sequence_axis: axis whose ranks get slices of each
    sequence. balanced: cut sequences for causal attention, into two chunks for each rank: one from the head,
    one from the tail; with ``documents``, cut each document of packed rows so. sequence_fields: fields of the
    batch to cut along their second dimension, for a loader that does not pack. processes: by mesh rank, the
    process that drives this device, where a process drives several; ``rank`` is then one of these.

    Raises: OptionError for axes without a size or a name that is not there, and for a rank that the mesh does
    not have or nobody names.
    """

    axes: Any
    rank: int | None = None
    batch_axes: Sequence[str] | None = None
    sequence_axis: str | None = None
    balanced: bool | str = False
    sequence_fields: Sequence[str] = ()
    processes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.axes, Mapping):
            if self.rank is not None or self.processes is not None:
                raise OptionError("this mesh knows the rank of its process: leave out rank and processes")
            for name, value in _described(self.axes).items():
                object.__setattr__(self, name, value)
        axes = {str(name): whole(f"the mesh axis {name}", size, 1) for name, size in self.axes.items()}
        object.__setattr__(self, "axes", axes)
        if self.processes is not None:
            object.__setattr__(self, "processes", tuple(int(process) for process in self.processes))
            if len(self.processes) != self.size or min(self.processes) < 0:
                raise OptionError(f"processes has a number for each of {self.size} ranks of the mesh")
        if self.rank is not None:
            object.__setattr__(self, "rank", whole("rank", self.rank, 0))
        batch_axes = self._checked_batch_axes()
        object.__setattr__(self, "batch_axes", batch_axes)
        object.__setattr__(self, "sequence_fields", _names("sequence_fields", self.sequence_fields))
        if self.balanced not in (False, True, "documents"):
            raise OptionError(f"balanced is True, False or 'documents', not {self.balanced!r}")
        if self.balanced == "documents" and self.sequence_fields:
            raise OptionError("balanced='documents' cuts packed rows: give pack=, and no sequence_fields")
        if self.sequence_axis is None and (self.balanced or self.sequence_fields):
            raise OptionError("balanced and sequence_fields need sequence_axis, the axis that cuts sequences")
        if self.sequence_axis is not None and self.sequence_axis not in axes:
            raise self._no_axis("sequence_axis", self.sequence_axis)
        if self.sequence_axis in batch_axes:
            raise OptionError(f"ranks of {self.sequence_axis} get slices of a sequence, or different samples")
        if self.rank is not None:
            self.resolve()

    @classmethod
    def of(
        cls,
        mesh: object,
        rank: int | None,
        world_size: int | None,
        batch_axes: Sequence[str] | None,
        sequence_axis: str | None,
    ) -> Mesh | None:
        """Return the mesh that these arguments of a Loader describe."""
        if mesh is None:
            if batch_axes is not None or sequence_axis is not None:
                raise OptionError("batch_axes and sequence_axis are axes of a mesh: give mesh=")
            return None
        if world_size is not None:
            raise OptionError("mesh says how many ranks there are: leave out world_size")
        if not isinstance(mesh, Mesh):
            return cls(mesh, rank, batch_axes, sequence_axis)
        if batch_axes is not None or sequence_axis is not None:
            raise OptionError("a Mesh has its axes itself: Mesh(…, batch_axes=…, sequence_axis=…)")
        return mesh if rank is None else dataclasses.replace(mesh, rank=rank)

    def _checked_batch_axes(self) -> tuple[str, ...]:
        if self.batch_axes is not None:
            names = _names("batch_axes", self.batch_axes)
            for name in names:
                if name not in self.axes:
                    raise self._no_axis("batch_axes", name)
            return names
        for name, size in self.axes.items():
            if size > 1 and name != self.sequence_axis and name not in BATCH_AXES | MODEL_AXES:
                usual = tuple(axis for axis in self.axes if axis in BATCH_AXES)
                raise OptionError(
                    f"ranks of the mesh axis {name!r} may need the same samples or different ones: give "
                    f"batch_axes={usual} or batch_axes={(*usual, name)}"
                )
        return tuple(name for name in self.axes if name in BATCH_AXES and name != self.sequence_axis)

    def _no_axis(self, argument: str, name: str) -> OptionError:
        return OptionError(
            f"{argument}: the mesh has no axis {name!r}{near(name, self.axes)}; it has {listed(self.axes)}"
        )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.axes.values())

    @property
    def chunk_count(self) -> int:
        """Number of chunks that sequences are cut into."""
        slices = 1 if self.sequence_axis is None else self.axes[self.sequence_axis]
        return 2 * slices if self.balanced and slices > 1 else int(slices)

    def placed(self) -> Mesh:
        """Return this mesh with the rank of this process as it is now."""
        if self.rank is not None:
            return self
        if self.processes is not None:
            raise OptionError("a mesh with processes needs rank, the number of this process among them")
        rank, world_size = rank_and_world_size()
        if world_size != self.size:
            raise OptionError(
                f"the mesh {self} has {self.size} ranks, and there are {world_size} processes: give the rank "
                "of this process in the mesh"
            )
        return dataclasses.replace(self, rank=rank)

    def resolve(self) -> MeshRank:
        """Return the rank of this process among those with other samples, and its chunks of a sequence."""
        if self.rank is None:
            return self.placed().resolve()
        assert self.batch_axes is not None
        along = () if self.sequence_axis is None else (self.sequence_axis,)
        count = math.prod(self.axes[name] for name in along)
        if self.processes is None:
            if self.rank >= self.size:
                raise OptionError(f"rank must be from 0 to {self.size - 1}, not {self.rank}")
            world_size = math.prod(self.axes[name] for name in self.batch_axes)
            rank, slices = (
                int(self._numbers(self.batch_axes, self.rank)),
                [int(self._numbers(along, self.rank))],
            )
        else:
            rank, world_size, slices = self._of_process(along)
        chunks = tuple(slices)
        if self.chunk_count > count:
            chunks = tuple(chunk for number in slices for chunk in (number, 2 * count - 1 - number))
        return MeshRank(rank, world_size, chunks, self.chunk_count)

    def _numbers(self, names: Sequence[str], ranks: Any) -> Any:
        """Return the numbers of mesh ranks along some axes, the first of them the outermost."""
        places = np.unravel_index(ranks, tuple(self.axes.values())) if self.axes else ()
        coordinates = dict(zip(self.axes, places, strict=True))
        numbers = np.zeros_like(ranks)
        for name in names:
            numbers = numbers * self.axes[name] + coordinates[name]
        return numbers

    def _of_process(self, along: Sequence[str]) -> tuple[int, int, list[int]]:
        """Return (rank, world size, slices) of a process that drives several ranks of the mesh."""
        owners = np.array(self.processes, dtype=np.int64)
        if self.rank not in owners:
            raise OptionError(f"no device of the mesh belongs to the process {self.rank}")
        ranks = np.arange(self.size)
        batches, rank, world_size = self._share(self._numbers(self.batch_axes or (), ranks), owners)
        slices, _, _ = self._share(self._numbers(along, ranks), owners)
        pairs = self._numbers([*(self.batch_axes or ()), *along], ranks[owners == self.rank])
        if len(np.unique(pairs)) != len(batches) * len(slices):
            raise self._uneven()
        return rank, world_size, slices

    def _share(self, numbers: I64, owners: I64) -> tuple[list[int], int, int]:
        """Return the numbers of this process, its rank by them, and the number of different ranks."""
        processes, owned = np.unique(np.stack([owners, numbers]), axis=1)
        ours = owned[processes == self.rank]
        # The lowest number of a process says which group it is in.
        lowest = np.full(int(owners.max()) + 1, self.size)
        np.minimum.at(lowest, processes, owned)
        group = np.empty(int(numbers.max()) + 1, dtype=np.int64)
        group[owned] = lowest[processes]
        groups, sizes = np.unique(group, return_counts=True)
        sizes = np.concatenate([sizes, np.unique(processes, return_counts=True)[1]])
        if (group[owned] != lowest[processes]).any() or (sizes != len(ours)).any():
            raise self._uneven()
        return ours.tolist(), int(np.searchsorted(groups, ours[0])), len(groups)

    def _uneven(self) -> OptionError:
        return OptionError(
            f"the processes of the mesh {self} do not share batches and sequences evenly: give each process "
            "the same number of devices along every axis"
        )

    def coordinates(self) -> dict[str, int]:
        """Return the rank of this process along each axis; nothing where it drives several devices."""
        if self.processes is not None:
            return {}
        rank = self.placed().rank
        return {name: int(self._numbers([name], rank)) for name in self.axes}

    def stats(self) -> dict[str, Any]:
        """Return the place of this process, for statistics."""
        rank = self.resolve()
        cut = {} if self.sequence_axis is None else {"chunks": list(rank.chunks), "of": rank.chunk_count}
        return {"axes": dict(self.axes), "rank": rank.rank, "world_size": rank.world_size, **cut}

    def describe(self) -> str:
        """Return the axes and, where sequences are cut, the chunks of this process, for people."""
        chunks = " and ".join(map(str, self.resolve().chunks))
        what = "document" if self.balanced == "documents" else "sequence"
        cut = f", chunks {chunks} of {self.chunk_count} of each {what}" if self.chunk_count > 1 else ""
        return f"mesh {self}{cut}"

    def __str__(self) -> str:
        return _sizes(self.axes) or "of one rank"


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise OptionError(f"{argument} takes several names, as ('dp',), not {names!r}")
    if len(set(names)) != len(names):
        raise OptionError(f"{argument} has a name twice: {', '.join(names)}")
    return tuple(names)


# -- meshes of frameworks ----------------------------------------------------------------------------------


def _described(mesh: Any) -> dict[str, Any]:
    """Return the axes and rank, or also the processes, of a framework's mesh."""
    if hasattr(mesh, "get_data_parallel_rank"):
        return _of_megatron(mesh)
    if hasattr(mesh, "get_coordinate") and hasattr(mesh, "mesh_dim_names"):
        return _of_device_mesh(mesh)
    if hasattr(mesh, "axis_names") and hasattr(mesh, "local_devices"):
        devices = np.asarray(mesh.devices)
        local = list(mesh.local_devices)
        if not local:
            raise OptionError("no device of the mesh belongs to this process")
        return {
            "axes": dict(zip(mesh.axis_names, devices.shape, strict=True)),
            "rank": local[0].process_index,
            "processes": [device.process_index for device in devices.flat],
        }
    raise OptionError(
        "mesh takes a torch DeviceMesh, a JAX Mesh, Megatron's parallel_state, a dict of sizes as "
        f"{{'dp': 4, 'tp': 2}}, or a Mesh, not {type(mesh).__name__}"
    )


def _of_device_mesh(mesh: Any) -> dict[str, Any]:
    if mesh.mesh_dim_names is None:
        raise OptionError("the DeviceMesh has no names of axes: make it with mesh_dim_names=('dp', 'tp')")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise OptionError("this process is no part of the DeviceMesh")
    return _ranked(dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True)), coordinate)


def _of_megatron(state: Any) -> dict[str, Any]:
    if not _is_initialized(state):
        raise OptionError(
            "Megatron has no groups yet: call parallel_state.initialize_model_parallel before making a Loader"
        )
    axes = _megatron_axes(state)
    return _ranked(axes, [int(getattr(state, f"get_{MEGATRON_AXES[axis]}_rank")()) for axis in axes])


def _ranked(axes: dict[str, int], coordinate: Sequence[int]) -> dict[str, Any]:
    rank = 0
    for size, number in zip(axes.values(), coordinate, strict=True):
        rank = rank * size + number
    return {"axes": axes, "rank": rank}


def _is_initialized(state: Any) -> bool:
    for name in ("model_parallel_is_initialized", "is_initialized"):
        if hasattr(state, name):
            return bool(getattr(state, name)())
    return True


def _megatron_axes(state: Any) -> dict[str, int]:
    """Return the sizes of Megatron's groups; older versions have none for context parallelism."""
    getters = {axis: getattr(state, f"get_{name}_world_size", None) for axis, name in MEGATRON_AXES.items()}
    return {axis: int(getter()) for axis, getter in getters.items() if getter is not None}


# -- meshes that were not given ----------------------------------------------------------------------------


def refuse_unused_mesh() -> None:
    """Raise OptionError if this run has a mesh with ranks that need the same samples.

    For loaders without mesh, rank and world size: they would give every rank of the run different samples.
    """
    unused = _unused_megatron() or _unused_device_mesh()
    if unused is not None:
        raise OptionError(
            f"{unused}, and not all of its ranks should get different samples: give Loader(…, mesh=…), or "
            "the rank and world_size of the data-parallel group"
        )


def _unused_megatron() -> str | None:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not hasattr(state, "get_data_parallel_rank") or not _is_initialized(state):
        return None
    axes = _megatron_axes(state)
    if all(size == 1 for axis, size in axes.items() if axis != "dp"):
        return None
    return f"Megatron's parallel_state has {_sizes(axes)}"


def _unused_device_mesh() -> str | None:
    """Return a description of a DeviceMesh that is in use and has axes besides those of the batch."""
    group, module = process_group_rank(), sys.modules.get("torch.distributed.device_mesh")
    if group is None or group[1] == 1 or module is None:
        return None
    # PyTorch has no list of the meshes that a program made.
    meshes = [item for item in gc.get_objects() if type(item) is module.DeviceMesh]
    all_axes = []
    for mesh in meshes:
        # FSDP2 makes a mesh without names where it gets none.
        unnamed = ["dp"] if mesh.ndim == 1 else [f"axis {number}" for number in range(mesh.ndim)]
        axes = zip(mesh.mesh_dim_names or unnamed, mesh.shape, strict=True)
        all_axes.append({name: size for name, size in axes if size > 1})
    # A mesh of batch axes for all ranks explains other names, but not that ranks hold parts of a model: other
    # libraries fold context parallelism into an axis fsdp.
    suspects = [axes for axes in all_axes if MODEL_AXES.intersection(axes)]
    if not any(BATCH_AXES.issuperset(axes) and math.prod(axes.values()) == group[1] for axes in all_axes):
        suspects += [axes for axes in all_axes if not BATCH_AXES.issuperset(axes)]
    if not suspects:
        return None
    largest = max(suspects, key=lambda axes: math.prod(axes.values()))
    return f"there is a DeviceMesh of {_sizes(largest)}"


def _sizes(axes: Mapping[str, int]) -> str:
    return " × ".join(f"{name} {size}" for name, size in axes.items())
