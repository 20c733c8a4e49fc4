"""PTX text -> syntax tree (PTX ISA 9.1, "Syntax" and "State Spaces, Types, and Variables").

Reads what compilers for sm_90a and sm_100a emit. What it does not know is an error with the line, never skipped, except
debugging directives (`.loc`, `.file`, `.section`), which carry no meaning for execution.
"""

from __future__ import annotations

from ..diagnostics import Source
from .syntax import (
    TYPE_BITS,
    Block,
    BranchTargets,
    Entry,
    Group,
    Instruction,
    Label,
    Memory,
    Module,
    Name,
    Not,
    Number,
    Operand,
    Pair,
    Registers,
    Variable,
    Vector,
)
from .tokens import Tokens

_KERNEL_DIRECTIVES = {
    ".reqntid": 3,
    ".maxntid": 3,
    ".minnctapersm": 1,
    ".maxnctapersm": 1,
    ".maxnreg": 1,
    ".reqnctapercluster": 3,
    ".maxclusterrank": 1,
    ".explicitcluster": 0,
    ".noreturn": 0,
}
_SPACES = (".shared", ".local", ".global", ".const", ".param")


def read(text: str, name: str = "<ptx>") -> Module:
    """The syntax tree of a PTX module. Raises PtxError (E300) where the text does not follow the grammar."""
    return _Reader(Source(name, text)).module()


class _Reader(Tokens):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._vectors: list[dict[str, tuple[Name, ...]]] = []  # by open block: vector registers and their elements

    # module level

    def module(self) -> Module:
        version, target = (0, 0), ""
        variables: list[Variable] = []
        functions: list[str] = []
        entries: list[Entry] = []
        while self.tokens[self.at][0] != "end":
            token = self.tokens[self.at]
            text = self.take()
            if text == ".version":
                number = self.tokens[self.at]
                try:
                    major, minor = self.take().split(".")
                    version = (int(major), int(minor))
                except ValueError:
                    raise self.fail(f"'{number[1]}' is no PTX version", token=number) from None
            elif text == ".target":
                target = self.word("a target")
                while self.accept(","):
                    self.word("a target option")
            elif text == ".address_size":
                if self.integer() != 64:
                    raise self.fail("only 64-bit addresses are modelled", token=token)
            elif text in (".visible", ".weak", ".extern", ".common"):
                self.linkage(text, variables, functions, entries)
            elif text == ".entry":
                entries.append(self.entry(token[2]))
            elif text in _SPACES:
                variables.extend(self.variable(text, external=False))
            elif text in (".file", ".section", ".loc"):
                self.debug(text)
            elif text == ".pragma":
                self.until(";")
            else:
                raise self.fail(f"'{text}' does not start a declaration of a module", token=token)
        if not target:
            raise self.fail("the text has no .target")
        return Module(version, target, tuple(variables), tuple(functions), tuple(entries))

    def linkage(self, linkage: str, variables: list[Variable], functions: list[str], entries: list[Entry]) -> None:
        token = self.tokens[self.at]
        text = self.take()
        if text == ".entry":
            entries.append(self.entry(token[2]))
        elif text == ".func" and linkage == ".extern":
            if self.accept("("):
                self.until(")")
            functions.append(self.word("a function name"))
            self.until(";")
        elif text in _SPACES:
            variables.extend(self.variable(text, external=linkage == ".extern"))
        else:
            raise self.fail(f"'{linkage} {text}' is not modelled", "only kernels and vprintf are", token=token)

    def debug(self, directive: str) -> None:
        if directive == ".section":
            self.until("{")
            self.until("}")
            return
        line = self.line(self.tokens[self.at - 1][2])
        while self.tokens[self.at][0] != "end" and self.line(self.tokens[self.at][2]) == line:
            self.at += 1

    def entry(self, start: int) -> Entry:
        name = self.word("a kernel name")
        parameters: list[Variable] = []
        if self.accept("(") and not self.accept(")"):
            while True:
                self.expect(".param")
                parameters.append(self.declarator(".param"))
                if self.accept(")"):
                    break
                self.expect(",")
        directives: dict[str, tuple[int, ...]] = {}
        while not self.accept("{"):
            token = self.tokens[self.at]
            text = self.take()
            if text == ".pragma":
                self.until(";")
                continue
            if text not in _KERNEL_DIRECTIVES:
                raise self.fail(f"'{text}' is no directive of a kernel that is modelled", token=token)
            values = []
            if self.tokens[self.at][0] == "number":
                values.append(self.integer())
                while self.accept(","):
                    values.append(self.integer())
            count = _KERNEL_DIRECTIVES[text]
            if len(values) > count or (count and not values):
                raise self.fail(f"'{text}' takes up to {count} numbers, found {len(values)}", token=token)
            directives[text[1:]] = tuple(values) + (1,) * (count - len(values))
        return Entry(name, tuple(parameters), directives, self.block(), start)

    # declarations

    def variable(self, space: str, *, external: bool) -> list[Variable]:
        first = self.declarator(space, external)
        found = [first]
        while self.accept(","):
            name = self.word("a name")
            found.append(Variable(first.space, name, first.align, first.size))
        self.expect(";")
        return found

    def declarator(self, space: str, external: bool = False) -> Variable:
        align, element, count = 0, "", 1
        while self.tokens[self.at][0] == "directive":
            token = self.tokens[self.at]
            text = self.take()
            if text == ".align":
                align = self.integer()
            elif text[1:] in TYPE_BITS and text != ".pred":
                element = text[1:]
            elif text in (".v2", ".v4"):
                count = int(text[2:])
            elif text == ".ptr":
                while self.tokens[self.at][0] == "directive" and self.peek() in (
                    ".global",
                    ".shared",
                    ".const",
                    ".local",
                ):
                    self.take()
                if self.accept(".align"):
                    self.integer()
            else:
                raise self.fail(f"'{text}' is not modelled in a declaration", token=token)
        if not element:
            raise self.fail("expected a type")
        width = TYPE_BITS[element] // 8
        name = self.word("a name")
        while self.accept("["):
            count *= 0 if self.peek() == "]" else self.integer()
            self.expect("]")
        data = b""
        if self.accept("="):
            data = self.initializer(width)
            if len(data) > width * count:
                raise self.fail(f"'{name}' has {width * count} bytes, its initializer {len(data)}")
        return Variable(space[1:], name, align or width, width * count, external, data)

    def initializer(self, width: int) -> bytes:
        values: list[int] = []
        if self.accept("{"):
            while not self.accept("}"):
                values.append(self.integer())
                self.accept(",")
        else:
            values.append(self.integer())
        return b"".join((value & ((1 << 8 * width) - 1)).to_bytes(width, "little") for value in values)

    # bodies

    def block(self) -> Block:
        block = Block()
        self._vectors.append({})
        while not self.accept("}"):
            kind, text, start = self.tokens[self.at]
            if kind == "word" and self.tokens[self.at + 1][1] == ":":
                self.at += 2
                if self.accept(".branchtargets"):
                    block.statements.append(BranchTargets(text, self.names()))
                else:
                    block.statements.append(Label(text, start))
            elif kind == "word" or text == "@":
                block.statements.append(self.instruction())
            elif text == "{":
                self.at += 1
                block.statements.append(self.block())
            elif text == ".reg":
                self.at += 1
                self.registers(block)
            elif text in _SPACES:
                self.at += 1
                block.variables.extend(self.variable(text, external=False))
            elif text == ".pragma":
                self.until(";")
            elif text == ".loc":
                self.at += 1
                self.debug(text)
            elif text == ";":
                self.at += 1
            else:
                raise self.fail(f"'{text or 'the end of the text'}' does not start a statement")
        self._vectors.pop()
        return block

    def names(self) -> tuple[str, ...]:
        found = [self.word("a label")]
        while self.accept(","):
            found.append(self.word("a label"))
        self.expect(";")
        return tuple(found)

    def registers(self, block: Block) -> None:
        elements = {".v2": "xy", ".v4": "xyzw"}.get(self.peek(), "")
        self.at += bool(elements)
        token = self.tokens[self.at]
        kind = self.take()[1:]
        if kind not in TYPE_BITS:
            raise self.fail(f"'{token[1]}' is no register type", token=token)
        while True:
            name = self.word("a register name")
            count = None
            if self.accept("<"):
                count = self.integer()
                self.expect(">")
            for register in [f"{name}.{e}" for e in elements] or [name]:
                block.registers.append(Registers(register, kind, count))
            self._vectors[-1][name] = tuple(Name(f"{name}.{e}") for e in elements)
            if not self.accept(","):
                break
        self.expect(";")

    def named(self, text: str) -> Name | Vector:
        """What a name stands for as an operand: itself, or the elements of a vector register."""
        name, dot, element = text.rpartition(".")
        for vectors in reversed(self._vectors):
            if text in vectors:
                return Vector(vectors[text]) if vectors[text] else Name(text)
            if dot and vectors.get(name) and element in "rgba":  # another spelling of x, y, z, w
                return Name(f"{name}.{'xyzw'['rgba'.index(element)]}")
        return Name(text)

    def instruction(self) -> Instruction:
        start = self.tokens[self.at][2]
        guard, negated = None, False
        if self.accept("@"):
            negated = self.accept("!")
            guard = Name(self.word("a predicate"))
        opcode = self.word("an opcode")
        operands: list[Operand] = []
        if not self.accept(";"):
            while True:
                operands.append(self.operand())
                if self.accept(";"):
                    break
                self.expect(",")
        end = self.tokens[self.at - 1][2] + 1
        return Instruction(opcode, tuple(operands), guard, negated, start, end, self.line(start))

    def operand(self) -> Operand:
        kind, text, _ = self.tokens[self.at]
        if kind == "word":
            self.at += 1
            if self.tokens[self.at][1] == "|":
                self.at += 1
                return Pair(Name(text), Name(self.word("a register")))
            if self.tokens[self.at][1] in ("+", "-") and self.tokens[self.at][0] == "mark":
                return Memory(Name(text), self.offset())  # an address expression, as in `mov.b32 %r, symbol+8`
            return self.named(text)
        if kind == "number":
            return self.number()
        self.at += 1
        if text == "-":
            number = self.number()
            if number.float_bits:
                return Number(number.value ^ 1 << number.float_bits - 1, number.float_bits)
            return Number(-number.value)
        if text == "[":
            return self.memory()
        if text == "{":
            return Vector(self.items("}"))
        if text == "(":
            return Group(self.items(")"))
        if text == "!":
            return Not(Name(self.word("a predicate")))
        self.at -= 1
        raise self.fail(f"'{text or 'the end of the text'}' does not start an operand")

    def items(self, close: str) -> tuple[Operand, ...]:
        found: list[Operand] = []
        if self.accept(close):
            return ()
        while True:
            found.append(self.operand())
            if self.accept(close):
                return tuple(found)
            self.expect(",")

    def memory(self) -> Memory:
        base: Name | Number = self.number() if self.tokens[self.at][0] == "number" else Name(self.word("an address"))
        offset = self.offset()
        coordinates = None
        if self.accept(","):
            self.expect("{")
            coordinates = Vector(self.items("}"))
        self.expect("]")
        return Memory(base, offset, coordinates)

    def offset(self) -> int:
        total = 0
        while (sign := self.peek()) in ("+", "-"):
            self.at += 1
            total += self.integer() if sign == "+" else -self.integer()
        return total
