"""Loading relocatable object files (`clang -c`, llvmlite's `emit_object`) into this process.

`load_object(data)` places an ELF64 object for this machine in memory, applies its relocations and knows the
addresses of its symbols.  Nothing is written to disk or run: no constructor is ever called, and no memory is
writable and executable at once.  Every count and offset in the file is checked before it is used; what is
malformed or beyond the supported subset raises `ObjectError`.  Objects of other formats (Mach-O, COFF) go
through llvmlite's JIT.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import CompileError

__all__ = ["ElfObject", "LoadedObject", "ObjectError", "link_object", "load_object", "parse_object"]


class ObjectError(CompileError):
    """An object file that is malformed, for another machine, or needs what the loader does not do."""


# ----------------------------------------------------------------------------------------------------
# The file format (System V ABI, "Object Files"; the same structures on both machines).  Records are named
# tuples because a new process pays for making these classes, and dataclasses cost it ten times as much.

X86_64, AARCH64 = 62, 183
_MACHINES = {"x86_64": X86_64, "AMD64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL, _SHT_CONSTRUCTORS = 2, 4, 8, 9, (14, 15, 16)
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS, _SHF_COMPRESSED = 0x1, 0x2, 0x4, 0x400, 0x800
_SHN_UNDEF, _SHN_LORESERVE, _SHN_ABS, _SHN_COMMON = 0, 0xFF00, 0xFFF1, 0xFFF2
_STB_WEAK, _STT_TLS, _STT_IFUNC = 2, 6, 10
_MAX_IMAGE = 1 << 30
"""Bytes; what is larger is taken for a corrupt size."""


class Section(NamedTuple):
    """A section that occupies memory.  `data` is empty for zero-initialised ones, whose length is `size`."""

    name: str
    flags: int
    size: int
    align: int
    data: bytes


class Symbol(NamedTuple):
    """`section` is an index into the file's sections, or a reserved one; `size` matters to common ones."""

    name: str
    section: int
    value: int
    size: int
    weak: bool


class Relocation(NamedTuple):
    """Patch `section` at `offset` with a value made of a symbol's address and `addend`."""

    section: int
    offset: int
    type: int
    symbol: int
    addend: int


class ElfObject(NamedTuple):
    """A checked object file: sections in memory by file index, all symbols, relocations to apply."""

    machine: int
    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def parse_object(data: bytes) -> ElfObject:
    """Read an ELF64 little-endian relocatable file.

    Raises
    ------
    ObjectError
        For anything else, and for any count, offset or index that does not hold.
    """
    if len(data) < _FILE_HEADER.size:
        raise ObjectError(f"object file is truncated: {len(data)} of {_FILE_HEADER.size} header bytes")
    header = _FILE_HEADER.unpack_from(data)
    ident, kind, machine, version, _, _, shoff, *_, shentsize, shnum, shstrndx = header
    if ident[:4] != b"\x7fELF":
        raise ObjectError(f"not an ELF object file: it starts with {ident[:4]!r}")
    if ident[4] != 2 or ident[5] != 1 or ident[6] != 1 or version != 1:
        raise ObjectError("only 64-bit little-endian ELF version 1 objects can be loaded")
    if kind != 1:
        raise ObjectError(f"only relocatable objects (compiled with -c) can be loaded, not ELF type {kind}")
    if machine not in (X86_64, AARCH64):
        raise ObjectError(f"object is for ELF machine {machine}, which is neither x86-64 nor AArch64")
    if shentsize != _SECTION_HEADER.size or not 0 < shnum < _SHN_LORESERVE:
        raise ObjectError(f"unsupported section table: {shnum} entries of {shentsize} bytes")
    _slice(data, shoff, shnum * shentsize, "section table")
    headers = [_SECTION_HEADER.unpack_from(data, shoff + i * shentsize) for i in range(shnum)]
    contents = [b"" if h[1] in (0, _SHT_NOBITS) else _slice(data, h[4], h[5], "section") for h in headers]
    if shstrndx >= shnum:
        raise ObjectError(f"section {shstrndx} of {shnum} would hold the section names")

    sections: dict[int, Section] = {}
    image = 0
    for i, (name_at, type_, flags, _, _, size, _, _, align, _) in enumerate(headers):
        if not flags & _SHF_ALLOC or not type_:
            continue
        name = _string(contents[shstrndx], name_at)
        if name == ".eh_frame":  # kernels do not unwind, and nothing is told of the tables
            continue
        align = max(align, 1)
        if align & (align - 1) or align > mmap.PAGESIZE:
            raise ObjectError(f"section {name!r} asks for alignment {align}")
        if flags & (_SHF_TLS | _SHF_COMPRESSED):
            raise ObjectError(f"section {name!r} is thread-local or compressed, which is not supported")
        if (type_ in _SHT_CONSTRUCTORS or name.startswith((".ctors", ".dtors"))) and size:
            raise ObjectError(f"section {name!r} holds constructors or destructors, which are never run")
        if flags & _SHF_WRITE and flags & _SHF_EXECINSTR:
            raise ObjectError(f"section {name!r} is both writable and executable")
        image += size + align
        if image > _MAX_IMAGE:
            raise ObjectError(f"sections need more than {_MAX_IMAGE} bytes of memory")
        sections[i] = Section(name, flags, size, align, contents[i])

    tables = [i for i, h in enumerate(headers) if h[1] == _SHT_SYMTAB]
    if len(tables) > 1:
        raise ObjectError(f"{len(tables)} symbol tables; an object has one")
    symbols = _symbols(headers, contents, tables[0], sections) if tables else ()

    relocations: list[Relocation] = []
    for header, content in zip(headers, contents, strict=True):
        type_, link, target = header[1], header[6], header[7]
        if type_ not in (_SHT_RELA, _SHT_REL) or target not in sections:
            continue
        if type_ == _SHT_REL or len(content) % _RELA.size or [link] != tables:
            raise ObjectError(f"relocations of {sections[target].name!r} are not in this machine's form")
        size = len(sections[target].data)
        for offset, info, addend in _RELA.iter_unpack(content):
            if offset >= size or info >> 32 >= len(symbols):
                raise ObjectError(f"relocation at {sections[target].name!r}+{offset:#x} is out of range")
            relocations.append(Relocation(target, offset, info & 0xFFFFFFFF, info >> 32, addend))
    return ElfObject(machine, sections, symbols, tuple(relocations))


def _symbols(
    headers: list[tuple[int, ...]], contents: list[bytes], table: int, sections: dict[int, Section]
) -> tuple[Symbol, ...]:
    strings = headers[table][6]
    if strings >= len(contents) or len(contents[table]) % _SYMBOL.size:
        raise ObjectError("malformed symbol table")
    symbols = []
    for name_at, info, _, section, value, size in _SYMBOL.iter_unpack(contents[table]):
        name = _string(contents[strings], name_at)
        if section in sections and value > sections[section].size:
            raise ObjectError(f"symbol {name!r} lies outside its section")
        if len(headers) <= section < _SHN_LORESERVE or section == 0xFFFF:
            raise ObjectError(f"symbol {name!r} is in section {section}; there are {len(headers)}")
        aligned = 0 < value <= mmap.PAGESIZE and not value & (value - 1)
        if section == _SHN_COMMON and not (aligned and size <= _MAX_IMAGE):
            raise ObjectError(f"common symbol {name!r} has size {size} and alignment {value}")
        if info & 15 in (_STT_TLS, _STT_IFUNC):
            raise ObjectError(f"symbol {name!r} is thread-local or indirect, which is not supported")
        symbols.append(Symbol(name, section, value, size, info >> 4 == _STB_WEAK))
    return tuple(symbols)


def _slice(data: bytes, offset: int, size: int, what: str) -> bytes:
    if offset + size > len(data):
        raise ObjectError(f"object file is truncated in a {what}: {size} bytes at {offset} of {len(data)}")
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset >= len(table) or end < 0:
        raise ObjectError(f"name at {offset} lies outside its string table of {len(table)} bytes")
    return table[offset:end].decode(errors="replace")


# ----------------------------------------------------------------------------------------------------
# Layout and relocation.  An image has three parts, each starting on a page: code and stubs (r-x), constants
# and the global offset table (r--), data (rw-).  Stubs and table entries hold whole addresses, so distance
# never matters.

_STUB_SIZE, _ENTRY_SIZE = 16, 8


class _Layout(NamedTuple):
    sections: dict[int, int]  # file index of a section -> offset in the image
    commons: dict[int, int]  # symbol index -> offset
    stubs: dict[int, int]  # symbol index -> offset of its stub
    table: int  # offset of the global offset table
    entries: dict[int, int]  # symbol index -> offset of its entry
    parts: tuple[int, int, int, int]  # offsets at which code, constants and data start, and the image's size


def _lay_out(obj: ElfObject) -> _Layout:
    machine = _RULES[obj.machine]
    needs_stub = {r.symbol for r in obj.relocations if r.type in machine.calls and _external(obj, r.symbol)}
    needs_entry = {r.symbol for r in obj.relocations if r.type in machine.got}
    end = 0

    def place(size: int, align: int) -> int:
        nonlocal end
        start = -(-end // align) * align
        end = start + size
        return start

    def place_all(writable: bool, executable: bool) -> dict[int, int]:
        wanted = (writable, executable)
        return {
            i: place(s.size, s.align)
            for i, s in obj.sections.items()
            if (bool(s.flags & _SHF_WRITE), bool(s.flags & _SHF_EXECINSTR)) == wanted
        }

    page = mmap.PAGESIZE
    sections = place_all(False, True)
    stubs = {symbol: place(_STUB_SIZE, 16) for symbol in sorted(needs_stub)}
    constants = place(0, page)
    sections |= place_all(False, False)
    table = place(0, 16)
    entries = {symbol: place(_ENTRY_SIZE, _ENTRY_SIZE) for symbol in sorted(needs_entry)}
    data = place(0, page)
    sections |= place_all(True, False)
    commons = {i: place(s.size, s.value) for i, s in enumerate(obj.symbols) if s.section == _SHN_COMMON}
    size = place(0, page)
    if size > _MAX_IMAGE:
        raise ObjectError(f"sections need more than {_MAX_IMAGE} bytes of memory")
    return _Layout(sections, commons, stubs, table, entries, (0, constants, data, size))


def _external(obj: ElfObject, symbol: int) -> bool:
    return obj.symbols[symbol].section == _SHN_UNDEF


def link_object(
    obj: ElfObject, base: int, resolve: Callable[[str], int | None]
) -> tuple[bytearray, dict[str, int]]:
    """Return the image of an object for the address `base`, and its defined symbols' addresses.

    `resolve` gives the address of a symbol that the object does not define, or None.
    """
    return _link(obj, _lay_out(obj), base, resolve)


def _link(
    obj: ElfObject, layout: _Layout, base: int, resolve: Callable[[str], int | None]
) -> tuple[bytearray, dict[str, int]]:
    machine = _RULES[obj.machine]
    image = bytearray(layout.parts[-1])
    for i, start in layout.sections.items():
        image[start : start + len(obj.sections[i].data)] = obj.sections[i].data

    addresses: dict[int, int] = {}

    def address(index: int) -> int:
        if (known := addresses.get(index)) is None:
            known = addresses[index] = find(index)
        return known

    def find(index: int) -> int:
        symbol = obj.symbols[index]
        if index == 0:
            return 0
        if symbol.section == _SHN_COMMON:
            return base + layout.commons[index]
        if symbol.section == _SHN_ABS:
            return symbol.value
        if symbol.section != _SHN_UNDEF:
            if symbol.section not in layout.sections:
                raise ObjectError(f"symbol {symbol.name!r} is used, but its section is not loaded")
            return base + layout.sections[symbol.section] + symbol.value
        if symbol.name == "_GLOBAL_OFFSET_TABLE_":
            return base + layout.table
        if (found := resolve(symbol.name)) is not None:
            return found
        if symbol.weak:
            return 0
        raise ObjectError(f"unresolved symbol {symbol.name!r}: no library of this process defines it")

    for index, start in layout.stubs.items():
        image[start : start + _STUB_SIZE] = machine.stub(address(index))
    for index, start in layout.entries.items():
        struct.pack_into("<Q", image, start, address(index) % 2**64)
    table = base + layout.table
    for r in obj.relocations:
        rule = machine.rules.get(r.type)
        name, section = obj.symbols[r.symbol].name, obj.sections[r.section]
        where = f"relocation of {name!r} at {section.name!r}+{r.offset:#x}"
        if rule is None:
            raise ObjectError(f"{where} has type {r.type}, which is not supported on {machine.name}")
        at = layout.sections[r.section] + r.offset
        if r.offset + rule.size > len(section.data):
            raise ObjectError(f"{where} reaches beyond the section")
        if r.type in machine.got:
            target = base + layout.entries[r.symbol]
        elif r.symbol in layout.stubs and r.type in machine.calls:
            target = _nearer(address(r.symbol), base + layout.stubs[r.symbol], base + at)
        else:
            target = address(r.symbol)
        try:
            rule.patch(image, at, target + r.addend, base + at, table)
        except OverflowError as error:
            message = f"{where} (type {r.type}) is out of range: {error}; compile with -fPIC"
            raise ObjectError(message) from None
    defined = {
        s.name: address(i)
        for i, s in enumerate(obj.symbols)
        if s.name and (s.section in layout.sections or s.section in (_SHN_COMMON, _SHN_ABS))
    }
    return image, defined


def _nearer(symbol: int, stub: int, place: int) -> int:
    """Return the symbol itself where a branch reaches it (64 MiB on either machine), else its stub."""
    return symbol if abs(symbol - place) < 1 << 26 else stub


# A rule patches the image at `at`, given the target address (addend included), the address of the place
# patched and that of the global offset table.  Names and formulas: the relocation tables of the x86-64 psABI
# and of "ELF for the Arm 64-bit Architecture".
_Patch = Callable[[bytearray, int, int, int, int], None]


class _Rule(NamedTuple):
    size: int
    patch: _Patch


class _Machine(NamedTuple):
    name: str
    rules: dict[int, _Rule]
    calls: frozenset[int]  # types that branch: may go through a stub
    got: frozenset[int]  # types whose target is the symbol's entry in the global offset table
    stub: Callable[[int], bytes]


def _check(value: int, low: int, high: int) -> int:
    if not low <= value < high:
        raise OverflowError(f"{value:#x} is not in [{low:#x}, {high:#x})")
    return value


def _absolute(size: int, signed: bool = False) -> _Rule:
    bits = size * 8
    low, high = (-1 << bits - 1, 1 << bits - 1) if signed else (0, 1 << bits)

    def patch(image: bytearray, at: int, target: int, place: int, table: int) -> None:
        if size < 8:
            _check(target, low, high)
        image[at : at + size] = (target % (1 << bits)).to_bytes(size, "little")

    return _Rule(size, patch)


def _relative(size: int) -> _Rule:
    bits = size * 8

    def patch(image: bytearray, at: int, target: int, place: int, table: int) -> None:
        value = target - place
        if size < 8:
            _check(value, -1 << bits - 1, 1 << bits - 1)
        image[at : at + size] = (value % (1 << bits)).to_bytes(size, "little")

    return _Rule(size, patch)


def _table_relative(image: bytearray, at: int, target: int, place: int, table: int) -> None:
    struct.pack_into("<Q", image, at, (target - table) % 2**64)


def _nothing(image: bytearray, at: int, target: int, place: int, table: int) -> None:
    """R_*_NONE: a dependency without a patch."""


def _instruction(field: Callable[[int, int], int], mask: int, shift: int) -> _Rule:
    """Return a rule for an AArch64 instruction: `field(target, place)` goes into bits `mask << shift`."""

    def patch(image: bytearray, at: int, target: int, place: int, table: int) -> None:
        (word,) = struct.unpack_from("<I", image, at)
        struct.pack_into("<I", image, at, word & ~(mask << shift) | (field(target, place) & mask) << shift)

    return _Rule(4, patch)


def _branch(bits: int, shift: int) -> _Rule:
    """Return a rule for a signed distance in words of `bits` bits."""

    def field(target: int, place: int) -> int:
        distance = _check(target - place, -1 << bits + 1, 1 << bits + 1)
        if distance & 3:
            raise OverflowError(f"{distance:#x} is no multiple of 4")
        return distance >> 2

    return _instruction(field, (1 << bits) - 1, shift)


def _adr(page: int) -> _Rule:
    """Return a rule for ADR (page 1) or ADRP (page 4096): 21 bits, the low two stored apart."""

    def patch(image: bytearray, at: int, target: int, place: int, table: int) -> None:
        distance = _check(target // page - place // page, -1 << 20, 1 << 20)
        (word,) = struct.unpack_from("<I", image, at)
        word = word & 0x9F00001F | (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5
        struct.pack_into("<I", image, at, word)

    return _Rule(4, patch)


def _low12(scale: int) -> _Rule:
    """Return a rule for the low 12 bits of an address, in units of the access size `1 << scale`."""

    def field(target: int, place: int) -> int:
        low = target & 0xFFF
        if low & (1 << scale) - 1:
            raise OverflowError(f"{target:#x} is not aligned to {1 << scale}")
        return low >> scale

    return _instruction(field, 0xFFF, 10)


def _move_wide(part: int) -> _Rule:
    return _instruction(lambda target, place: target >> 16 * part, 0xFFFF, 5)


_RULES = {
    X86_64: _Machine(
        name="x86-64",
        rules={
            0: _Rule(0, _nothing),
            1: _absolute(8),  # R_X86_64_64
            2: _relative(4),  # PC32
            4: _relative(4),  # PLT32
            9: _relative(4),  # GOTPCREL
            10: _absolute(4),  # 32
            11: _absolute(4, signed=True),  # 32S
            24: _relative(8),  # PC64
            25: _Rule(8, _table_relative),  # GOTOFF64
            26: _relative(4),  # GOTPC32
            27: _Rule(8, _table_relative),  # GOT64
            29: _relative(8),  # GOTPC64
            31: _Rule(8, _table_relative),  # PLTOFF64
            41: _relative(4),  # GOTPCRELX
            42: _relative(4),  # REX_GOTPCRELX
        },
        calls=frozenset({4, 31}),
        got=frozenset({9, 27, 41, 42}),
        stub=lambda target: struct.pack("<HIQxx", 0x25FF, 0, target),  # jmp [rip+0]; target
    ),
    AARCH64: _Machine(
        name="AArch64",
        rules={
            0: _Rule(0, _nothing),
            257: _absolute(8),  # R_AARCH64_ABS64
            258: _absolute(4),  # ABS32
            260: _relative(8),  # PREL64
            261: _relative(4),  # PREL32
            264: _move_wide(0),  # MOVW_UABS_G0_NC
            266: _move_wide(1),  # MOVW_UABS_G1_NC
            268: _move_wide(2),  # MOVW_UABS_G2_NC
            269: _move_wide(3),  # MOVW_UABS_G3
            273: _branch(19, 5),  # LD_PREL_LO19
            274: _adr(1),  # ADR_PREL_LO21
            275: _adr(4096),  # ADR_PREL_PG_HI21
            277: _low12(0),  # ADD_ABS_LO12_NC
            278: _low12(0),  # LDST8_ABS_LO12_NC
            279: _branch(14, 5),  # TSTBR14
            280: _branch(19, 5),  # CONDBR19
            282: _branch(26, 0),  # JUMP26
            283: _branch(26, 0),  # CALL26
            284: _low12(1),  # LDST16_ABS_LO12_NC
            285: _low12(2),  # LDST32_ABS_LO12_NC
            286: _low12(3),  # LDST64_ABS_LO12_NC
            299: _low12(4),  # LDST128_ABS_LO12_NC
            311: _adr(4096),  # ADR_GOT_PAGE
            312: _low12(3),  # LD64_GOT_LO12_NC
            314: _relative(4),  # PLT32
        },
        calls=frozenset({282, 283, 314}),
        got=frozenset({311, 312}),
        stub=lambda target: struct.pack("<IIQ", 0x58000050, 0xD61F0200, target),  # ldr x16, target; br x16
    ),
}

# ----------------------------------------------------------------------------------------------------
# Memory and symbols of this process


class LoadedObject:
    """Code in memory.  The addresses of its symbols hold as long as this object lives."""

    __slots__ = ("__weakref__", "_symbols")

    def __init__(self, symbols: dict[str, int]) -> None:
        self._symbols = symbols

    def symbol(self, name: str) -> int:
        """Return the address of a symbol that the object defines."""
        try:
            return self._symbols[name]
        except KeyError:
            known = ", ".join(sorted(self._symbols)) or "none"
            raise ObjectError(f"the object defines no symbol {name!r}; it defines: {known}") from None


def load_object(data: bytes) -> LoadedObject:
    """Load a relocatable object for this machine.

    Raises
    ------
    ObjectError
        If it is malformed, for another machine, or needs an unknown symbol or relocation; or without memory.
    """
    if data[:4] != b"\x7fELF" and sys.platform in ("darwin", "win32", "cygwin"):
        return _ForeignObject(data)
    obj = parse_object(data)
    if obj.machine != _MACHINES.get(platform.machine()):
        raise ObjectError(f"object is for {_RULES[obj.machine].name}, this machine is {platform.machine()}")
    layout = _lay_out(obj)
    _, constants, writable, size = layout.parts
    # Code compiled without -fPIC holds 32-bit addresses, which reach only the low 2 GiB.
    low = obj.machine == X86_64 and any(r.type in (10, 11) for r in obj.relocations)
    size = max(size, mmap.PAGESIZE)
    base = _map(size, low)
    try:
        image, symbols = _link(obj, layout, base, process_symbol)
        ctypes.memmove(base, (ctypes.c_char * len(image)).from_buffer(image), len(image))
        _protect(base, constants, mmap.PROT_READ | mmap.PROT_EXEC)
        _protect(base + constants, writable - constants, mmap.PROT_READ)
        if obj.machine == AARCH64 and (clear := process_symbol("__clear_cache")):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(clear)(base, base + constants)
    except BaseException:
        _unmap(base, size)
        raise
    loaded = LoadedObject(symbols)
    # Not at exit: threads may still be running the code then.
    weakref.finalize(loaded, _unmap, base, size).atexit = False
    return loaded


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _map(size: int, low: bool) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if low and sys.platform == "linux":
        flags |= 0x40  # MAP_32BIT, which Python does not name
    base: int | None = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if base is None or base == 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1:
        raise ObjectError(f"no memory for {size} bytes of code (errno {ctypes.get_errno()})")
    return base


def _protect(base: int, size: int, protection: int) -> None:
    if size and _libc().mprotect(base, size, protection):
        raise ObjectError(
            f"the system refuses to make memory executable (errno {ctypes.get_errno()}); "
            "a security policy such as SELinux's execmem forbids it"
        )


def _unmap(base: int, size: int) -> None:
    _libc().munmap(base, size)


@functools.cache
def process_symbol(name: str) -> int | None:
    """Return the address of a function or variable in this process's libraries, or None.

    Compilers emit calls of helpers in libgcc (half-precision conversions) and libm (fmod), so these two are
    searched also when nothing in the process has loaded them.
    """
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


@functools.cache
def _libraries() -> Sequence[ctypes.CDLL]:
    found = [_libc()]
    for name in ("libgcc_s.so.1", "libm.so.6"):
        try:
            found.append(ctypes.CDLL(name))
        except OSError:  # not on this system (musl): what it would define stays unresolved, and is named
            continue
    return found


class _ForeignObject(LoadedObject):
    """An object that is not ELF, linked by llvmlite's JIT when its first symbol is asked for."""

    __slots__ = ("_data", "_jit", "_trackers")

    def __init__(self, data: bytes) -> None:
        super().__init__({})
        self._data = data
        self._jit: Any = None
        self._trackers: list[Any] = []

    def symbol(self, name: str) -> int:
        if name not in self._symbols:
            from llvmlite import binding

            if self._jit is None:
                binding.initialize_native_target()
                binding.initialize_native_asmprinter()
                self._jit = binding.create_lljit_compiler()
            library = binding.JITLibraryBuilder().add_object_img(self._data).export_symbol(name)
            library.add_current_process()
            try:
                tracker = library.link(self._jit, f"object{len(self._trackers)}")
                self._symbols[name] = tracker[name]
            except (RuntimeError, KeyError) as error:
                raise ObjectError(f"llvmlite cannot load the object's symbol {name!r}: {error}") from error
            self._trackers.append(tracker)
        return self._symbols[name]
