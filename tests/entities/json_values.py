"""JSON objects as shadows hold them, small enough to meet each other often."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

KEYS = st.sampled_from(("a", "b", "c", "x/y", "~", "ö"))
SCALARS = st.sampled_from((0, 1, 1.0, True, False, "", "t", 2**53 + 1, -3.5))
ARRAYS = st.lists(
    st.one_of(st.none(), SCALARS, st.dictionaries(KEYS, st.one_of(st.none(), SCALARS), max_size=2)), max_size=2
)


def objects(*, nulls: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of up to a few levels; with ``nulls`` they are patches that remove things too."""
    leaf: st.SearchStrategy[Any] = st.one_of(SCALARS, ARRAYS)
    if nulls:
        leaf = st.one_of(leaf, st.none())
    return st.dictionaries(
        KEYS,
        st.recursive(leaf, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6),
        max_size=4,
    )


STATES = objects()
PATCHES = objects(nulls=True)


def plain_merge(target: Any, patch: Any) -> Any:
    """RFC 7396 section 2, word for word, on copies."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = plain_merge(result.get(name), value)
    return result
