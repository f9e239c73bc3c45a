"""Which subscriptions a topic reaches: exact filters in a dict, wildcards in a trie, answers cached per topic."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

from ..entities.topic import TopicFilter

T = TypeVar("T")
CACHED_TOPICS: Final = 65_536
REMEMBERED_CHANGES: Final = 256


class _Node(Generic[T]):
    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.here: dict[T, int] = {}
        self.rest: dict[T, int] = {}


class TopicIndex(Generic[T]):
    """A multimap from filters to hashable targets. Adding the same pair twice needs two removals.

    A cached answer outlives changes that do not touch its topic: it is brought up to date from the short list of
    recent changes, so clients that come and go do not cost everybody else the cache.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._exact: dict[str, dict[T, int]] = {}
        self._cache: dict[str, tuple[int, tuple[T, ...]]] = {}
        self._changes: deque[TopicFilter] = deque(maxlen=REMEMBERED_CHANGES)
        self._version = 0

    def add(self, wanted: TopicFilter, target: T) -> None:
        """Let the filter reach the target."""
        targets = self._targets(wanted)
        targets[target] = targets.get(target, 0) + 1
        self._changed(wanted)

    def remove(self, wanted: TopicFilter, target: T) -> None:
        """Undo one ``add``. Raises KeyError when there was none."""
        targets = self._targets(wanted)
        targets[target] -= 1
        if not targets[target]:
            del targets[target]
            self._prune(wanted)
        self._changed(wanted)

    def match(self, topic: str) -> tuple[T, ...]:
        """The targets of all filters that select the topic, each once, in no promised order."""
        cached = self._cache.get(topic)
        if cached is not None:
            version, found = cached
            if version == self._version:
                return found
            behind = self._version - version
            if behind <= len(self._changes) and not any(
                self._changes[-index].matches(topic) for index in range(1, behind + 1)
            ):
                self._cache[topic] = (self._version, found)
                return found
        found = self._search(topic)
        if len(self._cache) >= CACHED_TOPICS and topic not in self._cache:
            for stale in list(self._cache)[: CACHED_TOPICS // 8]:
                del self._cache[stale]
        self._cache[topic] = (self._version, found)
        return found

    def _changed(self, wanted: TopicFilter) -> None:
        self._version += 1
        self._changes.append(wanted)

    def _targets(self, wanted: TopicFilter) -> dict[T, int]:
        if wanted.is_exact:
            return self._exact.setdefault(wanted.text, {})
        node = self._root
        for level in wanted.levels:
            if level == "#":
                return node.rest
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        return node.here

    def _prune(self, wanted: TopicFilter) -> None:
        if wanted.is_exact:
            if not self._exact[wanted.text]:
                del self._exact[wanted.text]
            return
        path = [self._root]
        for level in wanted.levels:
            if level == "#":
                break
            path.append(path[-1].children[level])
        for depth in range(len(path) - 1, 0, -1):
            node = path[depth]
            if node.children or node.here or node.rest:
                return
            del path[depth - 1].children[wanted.levels[depth - 1]]

    def _search(self, topic: str) -> tuple[T, ...]:
        found = dict.fromkeys(self._exact.get(topic, ()))
        nodes = [self._root]
        for level in topic.split("/"):
            following = []
            for node in nodes:
                found.update(dict.fromkeys(node.rest))
                child = node.children.get(level)
                if child is not None:
                    following.append(child)
                child = node.children.get("+")
                if child is not None:
                    following.append(child)
            nodes = following
        for node in nodes:
            found.update(dict.fromkeys(node.rest))
            found.update(dict.fromkeys(node.here))
        return tuple(found)
