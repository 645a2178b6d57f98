"""Lets every device of a mesh run an op on its own sequences and heads, within plain `jax.jit`.

XLA cannot cut a kernel into parts: left to itself it gathers all inputs and runs all of the kernel
on every device. `spread` tells it how. Sequences (B) and heads (H) never meet, so both may be cut;
every other axis is whole on each device. A mesh axis that divides neither is left out: devices
along it then do the same work. The forward pass and its reverse are cut each for itself, so all
that one leaves to the other stays where it is.

Where the axes of an array are is a string, see `axes`. Merged axes are apart where arrays go from
one device to another, since a part of B and of H is no block of B H. Trees of arrays have trees of
such strings, where one string may stand for all arrays below it.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.experimental import custom_partitioning as xla
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kernels_pallas import axes
from kernels_pallas.axes import Names

CUT = ("B", "H")
"""Axes of which a device may have a part."""

MAPPED = "V"
"""First letter of axes that `jax.vmap` adds, which may be cut as well."""


class Places(NamedTuple):
    """Where the axes of a function's arrays are: trees of strings, hashable."""

    arguments: tuple[Any, ...]  # without the static one
    results: Any


@jax.tree_util.register_static
@dataclass(frozen=True)
class Absent:
    """A cotangent that is known to be zero: no array, though a device has its part of the shape."""

    place: str
    shape: tuple[int, ...]
    dtype: Any


def spread(places: Callable[[Any], Places], static: int) -> Callable[[Callable], Callable]:
    """Returns a decorator of a function that each device runs on its own part of the arrays.

    The function is called as it is where there is nothing to cut, see `needed`.

    Args:
      places: returns where the axes are, given the static argument.
      static: position of the argument that is no array but hashable.
    """

    def decorate(run: Callable) -> Callable:
        @functools.wraps(run)
        def call(*given):
            arrays, option = given[:static] + given[static + 1 :], given[static]
            if not needed(arrays):
                return run(*given)
            where = places(option)
            arrays = jax.tree.map(_mark, _for_each(where.arguments, arrays), arrays)
            leaves, tree = jax.tree.flatten(arrays)
            taken = tuple(jax.tree.leaves(_for_each(where.arguments, arrays)))
            sizes = axes.sizes(taken, [x.shape for x in leaves])
            leaves = [axes.split(x, place, sizes) for x, place in zip(leaves, taken, strict=True)]
            apart = _function(run, static, option, tree, taken, where.results)(*leaves)
            return jax.tree.map(axes.merge, apart, _for_each(where.results, apart))

        return call

    return decorate


def needed(arrays: Any) -> bool:
    """Whether there are devices among which XLA would have to cut a call.

    Not in a process that sees one device: a call would gain nothing and be traced twice. Not
    within `jax.shard_map`, where a device has nothing but its part, nor where arrays have their
    mesh in their types.
    """
    if jax.device_count() == 1 or jax.sharding.get_abstract_mesh().manual_axes:
        return False
    return not explicit(arrays)


def explicit(arrays: Any) -> bool:
    """Whether arrays lie on a mesh whose axes are of the type `AxisType.Explicit`."""
    meshes = [jax.sharding.get_abstract_mesh()]
    leaves = [x for x in jax.tree.leaves(arrays) if isinstance(x, jax.Array)]
    meshes += [jax.typeof(x).sharding.mesh for x in leaves]
    return any(AxisType.Explicit in mesh.axis_types for mesh in meshes)


@functools.lru_cache(maxsize=256)
def _function(
    run: Callable, static: int, option: Any, tree: Any, taken: tuple[str, ...], left: Any
) -> Callable:
    """Returns `run` as a jitted function of arrays whose axes are apart, each device on its part.

    It is kept: layers of the same shapes trace one kernel once.
    """

    @jax.jit
    def part(*leaves: jax.Array) -> Any:
        sizes = axes.sizes(taken, [x.shape for x in leaves], apart=True)
        given = tree.unflatten([axes.merge(*pair) for pair in zip(leaves, taken, strict=True)])
        given = jax.tree.map(lambda x: _zero(x, sizes), given, is_leaf=_is_absent)
        found = run(*given[:static], option, *given[static:])
        return jax.tree.map(lambda x, at: axes.split(x, at, sizes), found, _for_each(left, found))

    def names_of_results(found: Any) -> list[Names]:
        return [axes.names(place) for place in jax.tree.leaves(_for_each(left, found))]

    return jax.jit(_over_devices(part, [axes.names(place) for place in taken], names_of_results))


def _over_devices(
    part: Callable, taken: Sequence[Names], left: Callable[[Any], list[Names]]
) -> Callable:
    """Returns a function that runs `part` on every device.

    Args:
      part: of arrays, on one device.
      taken: names of the axes of its arguments.
      left: returns those of its results, given their tree.
    """

    @custom_vmap
    def call(*leaves: jax.Array) -> Any:
        found = jax.eval_shape(part, *leaves)
        results, tree = left(found), jax.tree.structure(found)

        def infer(mesh: Mesh, given: Any, _: Any) -> Any:
            cut = _cut(mesh, given, taken)
            return jax.tree.unflatten(tree, [_sharding(mesh, cut, names) for names in results])

        def partition(mesh: Mesh, given: Any, wanted: Any) -> Any:
            arrays = [*given, *jax.tree.leaves(wanted)]
            cut = _cut(mesh, arrays, [*taken, *results])
            places = jax.tree.unflatten(tree, [_sharding(mesh, cut, names) for names in results])
            return mesh, alone, places, tuple(_sharding(mesh, cut, names) for names in taken)

        def alone(*leaves: jax.Array) -> Any:
            # XLA asks for it while a mesh may be in use, of which a part knows nothing.
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                return part(*leaves)

        function = xla.custom_partitioning(part)
        rule = _rule(leaves, taken, jax.tree.leaves(found), results)
        function.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)
        return function(*leaves)

    @call.def_vmap
    def _(size: int, mapped: Sequence[bool], *leaves: jax.Array) -> Any:
        name = f"{MAPPED}{len({n for names in taken for n in names if n.startswith(MAPPED)})}"
        places = [0 if one else None for one in mapped]
        several = jax.jit(jax.vmap(part, in_axes=places, axis_size=size))
        more = [(name, *names) if one else names for one, names in zip(mapped, taken, strict=True)]
        found = _over_devices(several, more, lambda x: [(name, *names) for names in left(x)])
        found = found(*leaves)
        return found, jax.tree.map(lambda _: True, found)

    return call


def _rule(
    given: Sequence[Any], taken: Sequence[Names], found: Sequence[Any], left: Sequence[Names]
) -> xla.SdyShardingRule:
    """States for XLA which axes of arguments and results are the same, and which stay whole."""
    whole: list[str] = []

    def mapping(x: Any, names: Names) -> xla.ArrayMapping:
        factors = []
        for place in range(x.ndim):
            name = names[place] if place < len(names) else ""
            if not _may_cut(name):
                name = f"whole{len(whole)}"
                whole.append(name)
            factors.append(name)
        return xla.ArrayMapping(*factors)

    return xla.SdyShardingRule(
        tuple(mapping(x, names) for x, names in zip(given, taken, strict=True)),
        tuple(mapping(x, names) for x, names in zip(found, left, strict=True)),
        need_replication_factors=tuple(whole),
    )


def _cut(mesh: Mesh, arrays: Sequence[Any], names: Sequence[Names]) -> dict[str, Names]:
    """Chooses the mesh axes that cut each axis: of those found at an array, the most devices.

    Mesh axes that do not divide an axis of an array are left out, and those after them kept.

    Args:
      mesh: of all devices. Empty where no array of the program has a `NamedSharding`: then XLA
        does not say which devices have what, and nothing is cut.
      arrays: shapes with their shardings.
      names: of the axes of each array.
    """
    cut: dict[str, Names] = {}
    if mesh.empty:
        return cut
    for name in sorted({name for given in names for name in given if _may_cut(name)}):
        taken = {axis for found in cut.values() for axis in found}
        found: list[Names] = [()]
        for x, given in zip(arrays, names, strict=True):
            if name in given:
                place = given.index(name)
                kept: Names = ()
                for axis in _mesh_axes(x, place):
                    if axis not in taken and x.shape[place] % _devices(mesh, (*kept, axis)) == 0:
                        kept = *kept, axis
                found.append(kept)
        cut[name] = max(found, key=functools.partial(_devices, mesh))
    return cut


def _mesh_axes(x: Any, place: int) -> Names:
    """Returns the mesh axes that cut one axis of an array; none where its sharding has none."""
    spec = getattr(x.sharding, "spec", ())
    found = (*spec, *(None,) * x.ndim)[place] or ()
    return (found,) if isinstance(found, str) else tuple(found)


def _devices(mesh: Mesh, mesh_axes: Names) -> int:
    return math.prod(mesh.shape[axis] for axis in mesh_axes)


def _sharding(mesh: Mesh, cut: Mapping[str, Names], names: Names) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(cut.get(name) or None for name in names)))


def _may_cut(name: str) -> bool:
    return name in CUT or name.startswith(MAPPED)


def _for_each(places: Any, arrays: Any) -> Any:
    """Gives every array its string, where one may stand for several."""
    return jax.tree.map(lambda place, x: jax.tree.map(lambda _: place, x), places, arrays)


def _mark(place: str, x: Any) -> Any:
    return Absent(place, x.shape, x.dtype) if isinstance(x, SymbolicZero) else x


def _is_absent(x: Any) -> bool:
    return isinstance(x, Absent)


def _zero(x: Any, sizes: Mapping[str, int]) -> Any:
    """Reverses `_mark`, with the part of a zero that a device has."""
    if not _is_absent(x):
        return x
    first = [math.prod(sizes[name] for name in group) for group in axes.groups(x.place)]
    part: Any = jax.ShapeDtypeStruct((*first, *x.shape[len(first) :]), x.dtype)
    return SymbolicZero(part)
