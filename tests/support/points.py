"""Points in time, and what puts them in order: a graph, and its cycles."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

# "read", "commit" or "time"; the number of the transaction or of the moment; the number of the statement, or 0.
Point = tuple[str, int, int]
After = Mapping[Point, Mapping[Point, str]]


class Graph:
    """Points and what puts them in order."""

    def __init__(self) -> None:
        self._after: dict[Point, dict[Point, str]] = defaultdict(dict)

    def add(self, earlier: Point, later: Point, label: str) -> None:
        """`earlier` comes before `later`; said twice, the first label stays."""
        if earlier != later:
            self._after[earlier].setdefault(later, label)

    def leads(self, start: Point, goal: Point) -> bool:
        """Whether `start` comes before `goal`, by however many steps."""
        return bool(_way(self._after, start, goal))

    def cycles(self, *, timed: bool) -> list[list[tuple[Point, str]]]:
        """A shortest cycle through each point that is in one; `timed`: what was told when counts as order."""
        after = (
            self._after
            if timed
            else {
                earlier: {later: label for later, label in found.items() if label != "time"}
                for earlier, found in self._after.items()
            }
        )
        return [way for point in _in_cycles(after) if (way := _way(after, point, point))]


def _in_cycles(after: After) -> set[Point]:
    """What is left when points without predecessors are taken away, and then those without successors."""
    left = set(after) | {later for found in after.values() for later in found}
    before: dict[Point, set[Point]] = {point: set() for point in left}
    for earlier, found in after.items():
        for later in found:
            before[later].add(earlier)
    _strip(left, {point: len(found) for point, found in before.items()}, after)
    following = {point: len(left & after.get(point, {}).keys()) for point in left}
    _strip(left, following, before)
    return left


def _strip(left: set[Point], counts: dict[Point, int], neighbours: Mapping[Point, Iterable[Point]]) -> None:
    free = [point for point in left if not counts[point]]
    while free:
        point = free.pop()
        left.discard(point)
        for other in neighbours.get(point, ()):
            if other in left:
                counts[other] -= 1
                if not counts[other]:
                    free.append(other)


def _way(after: After, start: Point, goal: Point) -> list[tuple[Point, str]]:
    """A shortest way from a point to another or round to itself: points, and the labels that leave them."""
    came: dict[Point, Point] = {}
    waiting = deque([start])
    while waiting:
        point = waiting.popleft()
        for later in after.get(point, ()):
            if later == goal:
                way = [(point, after[point][later])]
                while point != start:
                    point, later = came[point], point
                    way.insert(0, (point, after[point][later]))
                return way
            if later not in came and later != start:
                came[later] = point
                waiting.append(later)
    return []
