"""Fibers of a program on Osier, for gdb: in a live process. A core shows none.

    (gdb) source osier.py
    (gdb) osier fibers          one line for each suspended fiber
    (gdb) osier bt 7            the stack of number 7 of that list
    (gdb) osier bt all          the stacks of all of them

No debug information is needed beyond line tables, and nothing of the process is changed.

The script finds the regions of stacks by the statics REGIONS and ROWS of osier_coro::slots, and in each slot the label at its
top (coro/src/slots.rs). A coroutine lies in the memory of its worker: three words in a row are its stack (the end of the slot,
with a few bits below), the stack pointer at its last switch, and the first one. At that pointer lie the address at which it
goes on, rbx and rbp (corosensei's switch on x86-64, the only processor that the script knows).

A fiber that runs is no suspended one: `thread apply all bt` shows it.
"""

import bisect
import functools
import re
import struct

import gdb
from gdb.unwinder import Unwinder

WORD = 8
LABEL = 64
PAGE = 4096
# The bits below the end of a slot that say its size, its kind of guard and its colour.
TAGS = 0x3DF
# The end of a symbol.
HASH = re.compile("::h[0-9a-f]{16}$")
# The code that a suspended coroutine runs first: push rbp; mov [rsi-16],rsp; lea rsp,[rdx+8]; pop rbx; pop rbp.
ENTRY = bytes.fromhex("55488966f0488d62085b5d")


def read(address, size):
    return bytes(gdb.selected_inferior().read_memory(address, size))


def words(address, count):
    return struct.unpack("<%dQ" % count, read(address, count * WORD))


@functools.cache
def statics(program):
    """The addresses of ROWS and REGIONS in a program. Their symbols may end with a hash. One search: each takes a second in a large program."""
    found = {}
    for line in gdb.execute("info variables -q ^osier_coro::slots::R", to_string=True).splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0].startswith("0x"):
            found[HASH.sub("", fields[1])] = int(fields[0], 16)
    try:
        return found["osier_coro::slots::ROWS"], found["osier_coro::slots::REGIONS"]
    except KeyError:
        raise gdb.GdbError("no stacks of fibers here: is it a program on Osier, and not stripped?") from None


def regions():
    """The carved part of each region, the size of its slots, and the distance between their starts."""
    inferior = gdb.selected_inferior()
    rows, table = statics((inferior.num, inferior.pid))
    count = words(rows, 1)[0]
    for row in range(count):
        start, _, slot, carved, pitch = words(table + row * 5 * WORD, 5)
        if slot:
            yield start, carved, slot, pitch


def mappings():
    """The writable memory without stacks of fibers, as (start, end)."""
    stacks = [(start, start + carved) for start, carved, _, _ in regions()]
    listed = gdb.execute("info proc mappings", to_string=True).splitlines()
    for line in listed:
        fields = line.split()
        if len(fields) < 4 or not fields[0].startswith("0x"):
            continue
        start, end = int(fields[0], 16), int(fields[1], 16)
        permissions = fields[4] if len(fields) > 4 and len(fields[4]) == 4 else "rw-p"
        if not permissions.startswith("rw"):
            continue
        if any(start < high and low < end for low, high in stacks):
            continue
        yield start, end


class Fiber:
    def __init__(self, top, slot, pointer):
        self.top, self.slot, self.pointer = top, slot, pointer
        self.next, self.rbx, self.rbp = words(pointer, 3)
        # It goes on behind the code that restores the registers.
        self.pc = self.next + len(ENTRY)
        self.sp = pointer + 3 * WORD

    def place(self):
        place, _ = words(self.top - LABEL, 2)
        if not place:
            return "?"
        text, length = words(place, 2)
        line = struct.unpack("<I", read(place + 2 * WORD, 4))[0]
        try:
            return "%s:%d" % (read(text, min(length, 300)).decode(errors="replace").rstrip("\0"), line)
        except gdb.MemoryError:
            return "?"

    def name(self):
        length = words(self.top - LABEL + WORD, 1)[0]
        return read(self.top - LABEL + 2 * WORD, min(length, 48)).decode(errors="replace")

    def __str__(self):
        name = self.name()
        return "fiber%s spawned at %s" % (" '%s'" % name if name else "", self.place())

    def frames(self):
        """(pc, function, file, line), the innermost first."""
        return walk(self)


def is_suspended(pointer):
    try:
        return read(words(pointer, 1)[0], len(ENTRY)) == ENTRY
    except gdb.MemoryError:
        return False


def fibers():
    """The suspended fibers, by their stacks."""
    spans = sorted((start, start + carved, slot, pitch) for start, carved, slot, pitch in regions())
    starts = [span[0] for span in spans]

    def slot_of(address):
        """The end and the size of the slot that ends at `address` or contains it."""
        at = bisect.bisect_right(starts, address - 1) - 1
        if at < 0 or address > spans[at][1]:
            return None
        start, _, slot, pitch = spans[at]
        return start + (address - 1 - start) // pitch * pitch + slot, slot

    found = {}
    for start, end in mappings():
        try:
            memory = read(start, end - start)
        except gdb.MemoryError:
            continue
        all_words = struct.unpack("<%dQ" % (len(memory) // WORD), memory[: len(memory) // WORD * WORD])
        for index, word in enumerate(all_words):
            if word & (PAGE - 1) & ~TAGS or word < PAGE:
                continue
            top = word & ~(PAGE - 1)
            slot = slot_of(top)
            if slot is None or slot[0] != top or top in found:
                continue
            for pointer in all_words[max(index - 3, 0) : index + 4]:
                if top - slot[1] < pointer < top - LABEL and pointer % WORD == 0 and is_suspended(pointer):
                    found[top] = Fiber(top, slot[1], pointer)
                    break
    return [found[top] for top in sorted(found)]


class FrameId:
    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


class Below(Unwinder):
    """Makes the frames of a suspended fiber the callers of the frame in which the thread has stopped."""

    def __init__(self):
        super().__init__("osier")
        self.fiber = None

    def __call__(self, pending):
        fiber = self.fiber
        if fiber is None or int(pending.read_register("rsp")) != self.sp or int(pending.read_register("rip")) != self.pc:
            return None
        kind = gdb.lookup_type("unsigned long")
        info = pending.create_unwind_info(FrameId(pending.read_register("rsp"), pending.read_register("rip")))
        for register, value in (("rip", fiber.pc), ("rsp", fiber.sp), ("rbp", fiber.rbp), ("rbx", fiber.rbx)):
            info.add_saved_register(register, gdb.Value(value).cast(kind))
        return info

    def show(self, fiber):
        gdb.invalidate_cached_frames()
        frame = gdb.newest_frame()
        self.sp, self.pc = int(frame.read_register("rsp")), frame.pc()
        self.fiber = fiber
        gdb.invalidate_cached_frames()

    def hide(self):
        self.fiber = None
        gdb.invalidate_cached_frames()


UNWINDER = Below()
gdb.unwinder.register_unwinder(None, UNWINDER, replace=True)


def walk(fiber, limit=128):
    UNWINDER.show(fiber)
    frames = []
    try:
        frame = gdb.newest_frame().older()
        while frame is not None and len(frames) < limit:
            function = HASH.sub("", frame.name() or "?")
            sal = frame.find_sal()
            source = sal.symtab.filename if sal is not None and sal.symtab is not None else None
            frames.append((frame.pc(), function, source, sal.line if source else 0))
            # Behind the fiber's first frame comes the stack of the worker.
            is_last = function.startswith("osier::worker::core::Core") and function.endswith("::enter")
            if is_last or not fiber.top - fiber.slot < int(frame.read_register("rsp")) < fiber.top:
                break
            frame = frame.older()
    except gdb.error as error:
        frames.append((0, "(%s)" % error, None, 0))
    finally:
        UNWINDER.hide()
    return frames


def is_runtime(source):
    """Whether a source file is one of the runtime's, or of std's."""
    parts = ("runtime/src/", "coro/src/", "queue/src/", "/corosensei-", "/library/std/", "/library/core/")
    return source is None or any(part in source for part in parts)


class Osier(gdb.Command):
    """Shows the fibers of a program on Osier: `osier fibers`, `osier bt NUMBER`, `osier bt all`."""

    def __init__(self):
        super().__init__("osier", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        words_ = argument.split()
        if words_ == ["fibers"]:
            return self.list()
        if len(words_) == 2 and words_[0] == "bt":
            return self.backtrace(words_[1])
        raise gdb.GdbError(self.__doc__)

    def list(self):
        all_ = fibers()
        for number, fiber in enumerate(all_, 1):
            outer = [frame for frame in fiber.frames() if not is_runtime(frame[2])]
            _, function, source, line = outer[0] if outer else (0, "the runtime", None, 0)
            at = " at %s:%d" % (source, line) if source else ""
            print("%4d %s, waits in %s%s" % (number, fiber, function, at))
        print("%d suspended fibers" % len(all_))

    def backtrace(self, which):
        all_ = fibers()
        numbers = range(1, len(all_) + 1) if which == "all" else [int(which)]
        for number in numbers:
            if not 1 <= number <= len(all_):
                raise gdb.GdbError("there are %d fibers" % len(all_))
            fiber = all_[number - 1]
            print("%d %s" % (number, fiber))
            for level, (pc, function, source, line) in enumerate(fiber.frames()):
                at = " at %s:%d" % (source, line) if source else ""
                print("  #%-3d 0x%016x in %s%s" % (level, pc, function, at))


Osier()
