"""uop.py: interning, derived facts, and graphs of any depth."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import struct
import threading
from typing import Any

import pytest

from retarget.errors import InternalError
from retarget.ir import dtypes, index, ops, uop
from retarget.ir.text import dump, parse
from retarget.ir.uop import UOp, const, new_buffer, sort_key, toposort, union

F32 = dtypes.float32


def param(name: str = "x") -> UOp:
    return UOp(ops.PARAM, F32, (), (name, (4, 4), False))


def chain(length: int) -> UOp:
    u = param("chain")
    for _ in range(length):
        u = UOp(ops.NEG, F32, (u,))
    return u


# -- identity ----------------------------------------------------------------------------------------------


def test_equal_means_identical() -> None:
    x = param()
    assert UOp(ops.ADD, F32, (x, x)) is UOp(ops.ADD, F32, (x, param()))
    assert UOp(ops.ADD, F32, (x, x)) is not UOp(ops.MUL, F32, (x, x))
    assert x is not param("y")


def test_constants_are_told_apart_by_bits_and_dtype() -> None:
    assert const(0.0, F32) is not const(-0.0, F32)
    assert const(-0.0, F32) is const(-0.0, F32)
    assert math.copysign(1.0, const(-0.0, F32).arg) < 0
    assert const(1, dtypes.int32) is not const(1.0, F32)
    assert const(1, dtypes.int32) is not const(True, dtypes.bool_)
    assert const(1, dtypes.int32) is not const(1, dtypes.int64)
    assert [type(const(1, d).arg) for d in (dtypes.bool_, dtypes.int8, F32)] == [bool, int, float]


def test_there_is_one_nan() -> None:
    negative = struct.unpack("d", struct.pack("Q", 0xFFF8_0000_0000_0001))[0]
    nan = const(math.nan, F32)
    assert const(negative, F32) is nan
    assert UOp(ops.CONST, F32, (), negative) is nan
    assert parse(dump(nan)) is nan


def test_constants_take_the_form_of_their_dtype() -> None:
    assert const(300, dtypes.uint8).arg == 44
    assert const(-1, dtypes.uint64).arg == 2**64 - 1
    assert const(200, dtypes.int8).arg == -56
    assert const(0.1, F32).arg == struct.unpack("f", struct.pack("f", 0.1))[0]
    assert const(70000.0, dtypes.float16).arg == math.inf
    assert const(1e39, F32).arg == math.inf
    assert math.isnan(const(500.0, dtypes.float8_e4m3).arg)
    assert const(1.0, F32.vector(4)) is const(1.0, F32)
    assert const(3, dtypes.index) is index.iconst(3)


def test_uops_are_immutable() -> None:
    x = param()
    for name in ("op", "src", "arg", "dtype", "shape", "other"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(x, name, None)


def test_copies_are_the_same_object() -> None:
    u = chain(5)
    assert copy.copy(u) is u
    assert copy.deepcopy(u) is u
    assert copy.deepcopy([u])[0] is u
    assert pickle.loads(pickle.dumps(u)) is u


def test_replace() -> None:
    x, y = param("x"), param("y")
    u = UOp(ops.ADD, F32, (x, x))
    assert u.replace((x, x)) is u
    assert u.replace((x, y)) is UOp(ops.ADD, F32, (x, y))


def test_attached_data_is_not_part_of_the_identity() -> None:
    owned = object()
    b = new_buffer(F32, (17, (2,), "numpy"), owned)
    assert b.shape == (2,)
    assert UOp(ops.BUFFER, F32, (), (17, (2,), "numpy")).data is owned


# -- lifetime ----------------------------------------------------------------------------------------------


def test_nodes_that_nothing_refers_to_are_forgotten() -> None:
    gc.collect()
    before = len(uop._table)
    u = chain(1000)
    i = index.irange(977, "r0")  # a range is one of its own free ranges, so that it waits for the collector
    mask = index.less_than(i, 976)
    assert len(uop._table) >= before + 1000
    del u
    assert len(uop._table) < before + 20
    del i, mask
    gc.collect()
    assert len(uop._table) <= before


def test_a_node_can_be_made_again_after_it_was_forgotten() -> None:
    for _ in range(3):
        u = chain(3)
        assert u is chain(3)
        del u


def test_threads_agree_on_every_node() -> None:
    count = 8
    start, built = threading.Barrier(count), [[] for _ in range(count)]  # type: list[list[UOp]]

    def build(n: int) -> None:
        start.wait()
        for k in range(400):
            u = UOp(ops.ADD, F32, (param(f"t{k}"), const(k + 0.5, F32)))
            built[n].append(UOp(ops.MUL, F32, (u, u)))
            UOp(ops.NEG, F32, (u,))  # dies at once, while others make the same one

    threads = [threading.Thread(target=build, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for nodes in zip(*built, strict=True):
        assert all(u is nodes[0] for u in nodes)


def test_threads_agree_on_vector_dtypes() -> None:
    found: list[list[dtypes.DType]] = []
    start = threading.Barrier(8)

    def build() -> None:
        start.wait()
        found.append([dtypes.uint16.vector(n) for n in range(100, 400)])

    threads = [threading.Thread(target=build) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for same in zip(*found, strict=True):
        assert len(set(same)) == 1


# -- depth -------------------------------------------------------------------------------------------------


def test_a_deep_chain_is_deleted() -> None:
    gc.collect()
    before = len(uop._table)
    u = chain(100_000)
    assert len(toposort((u,))) == 100_001
    del u
    gc.collect()
    assert len(uop._table) <= before


def test_a_deep_chain_is_pickled_and_copied() -> None:
    u = chain(100_000)
    assert pickle.loads(pickle.dumps(u)) is u
    assert copy.deepcopy(u) is u


def test_operands_come_before_users_in_a_fixed_order() -> None:
    x, y = param("x"), param("y")
    a, b = UOp(ops.ADD, F32, (x, y)), UOp(ops.MUL, F32, (y, x))
    c = UOp(ops.SUB, F32, (b, a))
    assert toposort((c,)) == [y, x, b, a, c]
    assert toposort((a, c, a)) == [x, y, a, b, c]


# -- derived facts -----------------------------------------------------------------------------------------


def graph(shape: tuple[int, ...] = (2, 1, 3), dtype: dtypes.DType = F32) -> UOp:
    return UOp(ops.BUFFER, dtype, (), (0, shape, "numpy"))


@pytest.mark.parametrize(
    ("op", "arg", "shape"),
    [
        (ops.RESHAPE, (6,), (6,)),
        (ops.EXPAND, (2, 5, 3), (2, 5, 3)),
        (ops.PERMUTE, (2, 0, 1), (3, 2, 1)),
        (ops.PAD, ((1, 2), (0, 0), (0, 1)), (5, 1, 4)),
        (ops.SHRINK, ((0, 1), (0, 1), (1, 3)), (1, 1, 2)),
        (ops.FLIP, (0,), (2, 1, 3)),
        (ops.REDUCE_AXIS, (ops.ADD, (0, 2)), (1, 1, 1)),
        (ops.CONTIGUOUS, None, (2, 1, 3)),
        (ops.NEG, None, (2, 1, 3)),
    ],
)
def test_shapes(op: ops.Op, arg: Any, shape: tuple[int, ...]) -> None:
    assert UOp(op, F32, (graph(),), arg).shape == shape


def test_shapes_of_several_operands() -> None:
    x, one = graph(), const(1.0, F32)
    assert one.shape == ()
    assert UOp(ops.SUB, F32, (one, x)).shape == (2, 1, 3)
    assert UOp(ops.SUB, F32, (x, one)).shape == (2, 1, 3)
    assert UOp(ops.WHERE, F32, (const(True, dtypes.bool_), one, x)).shape == (2, 1, 3)
    i = graph((7, 8), dtypes.int32)
    assert UOp(ops.GATHER, F32, (x, i)).shape == (7, 8, 1, 3)
    assert UOp(ops.GATHER, F32, (x, i, i, i)).shape == (7, 8)
    assert UOp(ops.IOTA, dtypes.int64, (), 9).shape == (9,)


def test_free_ranges_and_bounds() -> None:
    i, j = index.irange(4, "r0"), index.irange(5, "r1")
    x = UOp(ops.LOAD, F32, (param(), index.TRUE, i, j))
    total = UOp(ops.REDUCE, F32, (x, j), ops.ADD)
    assert x.ranges == {i, j}
    assert total.ranges == {i}
    assert UOp(ops.ADD, F32, (total, x)).ranges == {i, j}
    assert union((total, x, const(1.0, F32))) == {i, j}
    assert union(()) == frozenset()
    e = index.combine(((i, 3), (j, -2)), 1)
    assert (e.vmin, e.vmax) == (-7, 10)
    product = index.imul(UOp(ops.VAR, dtypes.index, (), ("n", -3, 4)), i)
    assert (product.vmin, product.vmax) == (-9, 12)
    value = UOp(ops.IVALUE, dtypes.index, (const(1, dtypes.int32),), (-5, 5))
    assert (value.vmin, value.vmax) == (-5, 5)


def test_index_nodes_need_bounds() -> None:
    with pytest.raises(InternalError, match="bounds"):
        UOp(ops.ADD, dtypes.index, (index.ONE, index.ONE))


def test_ranges_are_ordered_by_number() -> None:
    names = ["r10", "r2", "r1", "k1", "ab3"]
    ranges = [index.irange(3, n) for n in names]
    assert [u.arg[0] for u in sorted(ranges, key=sort_key)] == ["k1", "r1", "r2", "r10", "ab3"]
    assert sort_key(index.irange(3, "r0")) != sort_key(index.irange(4, "r0"))


def test_sort_keys_of_deep_values() -> None:
    deep = UOp(ops.CAST, dtypes.int32, (chain(5000),))
    value = UOp(ops.IVALUE, dtypes.index, (deep,), (0, 9))
    other = UOp(ops.IVALUE, dtypes.index, (UOp(ops.NEG, dtypes.int32, (deep,)),), (0, 9))
    assert sort_key(value) != sort_key(other)
    assert index.iadd(value, other) is index.iadd(other, value)


def test_identities() -> None:
    assert ops.identity(ops.ADD, F32) == 0.0
    assert ops.identity(ops.MUL, dtypes.bool_) is True
    assert ops.identity(ops.AND, dtypes.uint8) == 255
    assert ops.identity(ops.AND, dtypes.int8) == -1
    assert ops.identity(ops.MAXIMUM, dtypes.int8) == -128
    assert ops.identity(ops.MAXIMUM, F32) == -math.inf
    assert ops.identity(ops.MINIMUM, dtypes.uint16) == 65535
    with pytest.raises(KeyError):
        ops.identity(ops.SUB, F32)
