"""Version specifiers of manifests: what is decided without `packaging` is what `packaging` says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from retarget.registry.versions import _bounds, admits, is_specifier

numbers = st.lists(st.integers(0, 3).map(str), min_size=1, max_size=4).map(".".join)
bounds = st.tuples(st.sampled_from([">=", "<=", ">", "<"]), st.sampled_from(["", " "]), numbers).map("".join)
common = st.lists(bounds, min_size=1, max_size=3).map(",".join)
operators = st.sampled_from([">=", "<", "==", "~=", "!=", "==="])
other = st.lists(
    st.tuples(operators, st.sampled_from(["1.0", "1.*", "2rc1", "01"])).map("".join), max_size=3
).map(",".join)
unusual = st.sampled_from(["1rc1", "1.0.post1", "2.dev0"])
garbage = st.text("<>=~!,.* 0123456789arc\u0661", max_size=8)


@given(common, numbers)
def test_common_form(specifier: str, version: str) -> None:
    assert _bounds(specifier) is not None  # or it would be compared with itself
    assert is_specifier(specifier)
    assert admits(specifier, version) == SpecifierSet(specifier).contains(version, prereleases=True)


@given(st.one_of(common, other, garbage), st.one_of(numbers, unusual))
def test_everything(specifier: str, version: str) -> None:
    try:
        expected = SpecifierSet(specifier)
    except InvalidSpecifier:
        assert not is_specifier(specifier)
        return
    assert is_specifier(specifier)
    assert admits(specifier, version) == expected.contains(version, prereleases=True)
