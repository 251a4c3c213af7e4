"""From the leaves back to a whole value, as nested as its space."""

from collections.abc import Callable
from typing import Any, NamedTuple

from heddle.spaces.kinds import DictSpace, Graph, OneOf, SequenceSpace, Space, Text, TupleSpace, parts
from heddle.spaces.tree import OBSERVATION, leaves

Get = Callable[[str], Any]


class GraphValue(NamedTuple):
    """A graph as an environment shows it; edges and their links are None where there are none."""

    nodes: Any
    edges: Any
    edge_links: Any


def unflatten(space: Space, get: Get, root: str = OBSERVATION) -> Any:
    """One value of `space` from its leaves, which `get` finds by name: arrays, or cells. The opposite of `flatten`."""
    match space:
        case DictSpace():
            return {key: unflatten(part, get, f"{root}.{key}") for key, part in parts(space)}
        case TupleSpace():
            return tuple(unflatten(part, get, f"{root}.{key}") for key, part in parts(space))
        case OneOf():
            which = int(get(f"{root}.index"))
            return which, unflatten(space.spaces[which], get, f"{root}.{which}")
        case SequenceSpace():
            return _stack(space.space, get, root) if space.stacked else _elements(space.space, get, root)
        case Graph():
            return _graph(space, get, root)
        case _:
            return get(root)


def _graph(space: Graph, get: Get, root: str) -> GraphValue:
    nodes = _stack(space.node, get, f"{root}.nodes")
    if space.edge is None or not len(get(f"{root}.edge_links")):
        return GraphValue(nodes, None, None)
    return GraphValue(nodes, _stack(space.edge, get, f"{root}.edges"), get(f"{root}.edge_links"))


def _stack(space: Space, get: Get, root: str) -> Any:
    """The elements of a sequence with their leaves stacked, as far as they can be."""
    if isinstance(space, DictSpace | TupleSpace):
        found = {key: _stack(part, get, f"{root}.{key}") for key, part in parts(space)}
        return found if isinstance(space, DictSpace) else tuple(found.values())
    if isinstance(space, SequenceSpace | Graph | OneOf | Text):
        return _elements(space, get, root)
    return get(root)


def _elements(space: Space, get: Get, root: str) -> tuple[Any, ...]:
    names = [leaf.name for leaf in leaves(space, root)]
    cells = {name: get(name) for name in names}
    return tuple(
        unflatten(space, lambda name, place=place: cells[name][place], root)  # type: ignore[misc]
        for place in range(len(cells[names[0]]))
    )
