"""Cells: the values of leaves that differ in length, one object a step, and their way to flat arrays and back.

A cell of a leaf within one sequence is an array [k, ...] with one value an element; within more, a tuple with the
cells of the inner sequences. A Text is a str, and within sequences a tuple of those.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heddle.spaces.kinds import Text, index_range
from heddle.spaces.tree import Field, Leaf, blank

Cell: TypeAlias = Any
Lengths: TypeAlias = list[NDArray[np.int64]]
"""One array a sequence, from the outermost in: how many elements every one has."""
TakenApart: TypeAlias = tuple[Lengths, Any]


def blank_cell(leaf: Leaf) -> Cell:
    """That of a sequence without elements, or of an empty text."""
    if isinstance(leaf.space, Text):
        return () if leaf.depth else ""
    return _frozen(np.zeros((0, *leaf.space.shape), leaf.space.dtype)) if leaf.depth == 1 else ()


def boxed(cells: Iterable[Cell]) -> NDArray[Any]:
    """[N] objects."""
    found = list(cells)
    array = np.empty(len(found), object)
    for place, cell in enumerate(found):
        array[place] = cell
    return array


def fill(array: NDArray[Any], cell: Cell) -> None:
    """Put one cell into every place of an array of objects of any shape."""
    for place in np.ndindex(array.shape):
        array[place] = cell


def to_cell(leaf: Leaf, picked: Any) -> Cell:
    """A copy of what `leaf.pick` gave, as a cell; as an array where the leaf is not ragged.

    Raises:
        ValueError: an element has another shape or kind than the space says; the message begins with the leaf's name.
    """
    return _cell(leaf, picked, leaf.depth)


def taken_apart(leaf: Leaf, cells: Sequence[Cell]) -> TakenApart:
    """Lengths, one array a sequence, and all values in a row: an array [M, ...], or for a Text a list of str."""
    is_text = isinstance(leaf.space, Text)
    lengths, current = [], list(cells)
    for _ in range(leaf.depth - (not is_text)):
        lengths.append(np.array([len(cell) for cell in current], np.int64))
        current = [inner for cell in current for inner in cell]
    if is_text:
        return lengths, current
    lengths.append(np.array([len(cell) for cell in current], np.int64))
    empty = np.zeros((0, *leaf.space.shape), leaf.space.dtype)
    return lengths, np.concatenate([empty, *current])


def put_together(leaf: Leaf, lengths: Lengths, values: Any) -> list[Cell]:
    """The cells that `taken_apart` was given; arrays are views of `values`. The lengths must add up."""
    current: list[Any] = []
    if isinstance(leaf.space, Text):
        current, rest = list(values), lengths
    else:
        stops = np.cumsum(lengths[-1]).tolist()
        current = [values[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
        rest = lengths[:-1]
    for level in reversed(rest):
        stops = np.cumsum(level).tolist()
        current = [tuple(current[start:stop]) for start, stop in zip([0, *stops], stops, strict=False)]
    return current


def padded(leaf: Leaf, cells: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Cells [...] as arrays of numbers: the values, padded with blanks, and how many count.

    A Text becomes its code points, int64, padded with 0: one more sequence.

    Returns:
        name -> [..., W1, W2, ..., *shape] with one W a sequence, the longest's length and at least 1;
        "name:length" -> [...] int64, the elements of the outermost sequence; "name:length.1" -> [..., W1] of those
        within, 0 where there is none; and so on.
    """
    lengths, values = taken_apart(leaf, cells.reshape(-1).tolist())
    filler = blank(leaf.space)
    if isinstance(leaf.space, Text):
        coded = [np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in values]
        lengths.append(np.array([len(code) for code in coded], np.int64))
        values, filler = np.concatenate([np.zeros(0, np.int64), *coded]).astype(np.int64), np.int64(0)
    found: dict[str, NDArray[Any]] = {}
    mask = np.ones(cells.size, np.bool_)
    for level, counts in enumerate(lengths):
        spread = np.zeros(mask.shape, np.int64)
        spread[mask] = counts
        mask = np.arange(max(1, int(counts.max(initial=0)))) < spread[..., None]
        found[_length_name(leaf.name, level)] = spread.reshape(*cells.shape, *spread.shape[1:])
    out = np.empty((*mask.shape, *np.shape(filler)), values.dtype)
    out[...] = filler
    out[mask] = values
    return {leaf.name: out.reshape(*cells.shape, *out.shape[1:]), **found}


def numbers_of(leaves: Iterable[Leaf], observations: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Observations by leaf, [..., *shape], with arrays of numbers only; cells, [...] objects, are `padded`."""
    found = dict(observations)
    for leaf in leaves:
        if leaf.ragged:
            found |= padded(leaf, observations[leaf.name])
    return found


def values_problem(leaf: Leaf, values: Any) -> str | None:
    """What is wrong with values that nobody can learn from, whose shapes and kinds are right; bounds are not asked."""
    if isinstance(leaf.space, Text):
        longest = max(map(len, values), default=0)
        if longest > leaf.space.max_length:
            return f"has {longest} characters, its space at most {leaf.space.max_length}"
        odd = _odd("".join(values), leaf.space)
        return f"has the character {min(odd)!r}, which its space does not" if odd else None
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return "is not a finite number"
    limits = index_range(leaf.space, chosen=False)
    if limits is not None and ((values < limits[0]) | (values > limits[1])).any():
        return "is outside its space"
    return None


def first_disagreement(leaves: Iterable[Leaf], taken: Mapping[str, TakenApart]) -> str | None:
    """The first way in which leaves of one sequence differ in length, or a link names a node that there is not.

    Args:
        taken: of each leaf what `taken_apart` gave.
    """
    lengths: dict[tuple[int, str], tuple[str, NDArray[np.int64]]] = {}
    for leaf in leaves:
        for level, (name, counts) in enumerate(zip(leaf.within, taken[leaf.name][0], strict=True)):
            first, others = lengths.setdefault((level, name), (leaf.name, counts))
            if not np.array_equal(others, counts):
                return f"{first} and {leaf.name} have different numbers of elements"
    for leaf in leaves:
        if leaf.within and Field("edge_links") in leaf.path[-2:]:
            nodes = lengths[leaf.depth - 1, leaf.within[-1].removesuffix("edges") + "nodes"][1]
            edges, links = taken[leaf.name][0][-1], taken[leaf.name][1]
            if (links < 0).any() or (links >= np.repeat(nodes, edges)[:, None]).any():
                return f"{leaf.name} names a node that there is not"
    return None


def _length_name(name: str, level: int) -> str:
    return f"{name}:length" if level == 0 else f"{name}:length.{level}"


def _cell(leaf: Leaf, picked: Any, depth: int) -> Cell:
    if isinstance(leaf.space, Text) and depth == 0:
        return _text(leaf, picked)
    if depth > 1 or (depth and isinstance(leaf.space, Text)):
        return tuple(_cell(leaf, inner, depth - 1) for inner in picked)
    space = leaf.space
    if depth and not len(picked):
        return blank_cell(Leaf(leaf.name, space, (), leaf.within[:1]))
    try:
        found = np.array(picked)
    except ValueError as error:
        raise ValueError(f"{leaf.name} has elements of different shapes") from error
    shape = (len(picked), *space.shape) if depth else space.shape
    if found.shape != shape:
        raise ValueError(f"{leaf.name} has shape {found.shape[depth:]}, its space {space.shape}")
    kind = np.dtype(space.dtype)
    if found.dtype == kind:
        return found
    if not np.can_cast(found.dtype, kind, "same_kind") and not (found.dtype.kind in "biu" and kind.kind in "iu"):
        raise ValueError(f"{leaf.name} has dtype {found.dtype}, its space {kind}")
    cast = found.astype(kind)
    if kind.kind in "biu" and (cast != found).any():
        raise ValueError(f"{leaf.name} holds a number that its dtype {kind} cannot")
    return cast


def _text(leaf: Leaf, picked: Any) -> str:
    assert isinstance(leaf.space, Text)
    if not isinstance(picked, str):
        raise ValueError(f"{leaf.name} is a {type(picked).__name__}, its space holds text")
    if len(picked) > leaf.space.max_length:
        raise ValueError(f"{leaf.name} has {len(picked)} characters, its space at most {leaf.space.max_length}")
    if odd := _odd(picked, leaf.space):
        raise ValueError(f"{leaf.name} has the character {min(odd)!r}, which its space does not")
    return str(picked)


def _odd(text: str, space: Text) -> set[str]:
    """Characters that the space does not have, or that UTF-8 cannot carry."""
    if space.charset is not None:
        return set(text).difference(space.charset)
    return {character for character in text if "\ud800" <= character <= "\udfff"}


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
