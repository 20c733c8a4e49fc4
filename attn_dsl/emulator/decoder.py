"""Syntax tree -> instructions: opcodes by the table, names by scope, then control flow and register slots."""

from __future__ import annotations

from ..diagnostics import Source
from . import moves
from .cfg import analyse
from .encode import encode
from .errors import PtxError
from .forms import Choices, Form, number
from .ir import Ins, Raw, Target, Use
from .isa import MAX_OPERANDS, isa
from .opcodes import explain, lookup
from .operands import TRUE, Constants, Kind, Mismatch, Translator, call_param, parse_kinds
from .program import DecodedProgram
from .reader import read
from .scopes import DuplicateName, LabelKey, Layout, Scope, Symbol
from .slots import assign
from .syntax import TYPE_BITS, Block, Entry, Instruction, Label, Memory, Module, Name, Variable

TARGETS = {"sm_90": 90, "sm_90a": 90, "sm_100": 100, "sm_100a": 100, "sm_100f": 100}
VERSIONS = ((8, 0), (9, 4))  # PTX ISA versions, inclusive
_REG_BITS = "REGBITS"
_WIDEST = 256  # bits of one access


def decode(text: str, kernel: str | None = None, name: str = "<ptx>") -> DecodedProgram:
    """Decode one kernel of a PTX module (`kernel`; the only one if None).

    Raises PtxError: E300 malformed text, E301 an opcode or modifier that is not modelled, E302 operands that do not
    fit, E303 a target or version that is not modelled, E304 an unknown or doubly declared name.
    """
    source = Source(name, text)
    module = read(text, name)
    if module.target not in TARGETS:
        raise PtxError.of(
            "E303", f"the PTX is for {module.target}", hint=f"the emulator models {', '.join(sorted(TARGETS))}"
        )
    if not VERSIONS[0] <= module.version <= VERSIONS[1]:
        low, high = (".".join(map(str, version)) for version in VERSIONS)
        version = ".".join(map(str, module.version))
        raise PtxError.of("E303", f"the PTX has version {version}", hint=f"versions {low} to {high} are modelled")
    entries = {entry.name: entry for entry in module.entries}
    if kernel is None and len(entries) == 1:
        kernel = next(iter(entries))
    if kernel is None or kernel not in entries:
        wanted = f"kernel '{kernel}'" if kernel else "one kernel"
        raise PtxError.of("E304", f"the PTX has no {wanted}; it has {', '.join(entries) or 'none'}")
    return _Decoder(source, module, entries[kernel]).program()


class _Decoder:
    def __init__(self, source: Source, module: Module, entry: Entry) -> None:
        self.source = source
        self.module = module
        self.entry = entry
        self.layout = Layout()
        self.constants = Constants()
        self.code: list[Ins] = []
        self.labels: dict[LabelKey, int] = {}
        self.pending_lists: list[tuple[Ins, LabelKey, Scope, Instruction]] = []
        self._forms: dict[str, tuple[tuple[Form, Choices, tuple[Kind, ...]], ...]] = {}
        self.params: list[tuple[int, int]] = []
        self.global_data = bytearray()

    def fail(self, code: str, message: str, at: Instruction, hint: str | None = None) -> PtxError:
        return PtxError.at(code, message, self.source, at.start, at.end, hint)

    def program(self) -> DecodedProgram:
        root = Scope(self.layout)
        try:
            self.module_variables(root)
            # Shared variables may be declared anywhere in the body; the dynamic ones begin behind them all.
            body = root.open(self.entry.body)
            self.nested_shared(self.entry.body)
        except DuplicateName as duplicate:
            raise self.duplicate(duplicate, self.entry.start) from None
        self.translator = Translator(self.constants, self.layout.dynamic_base)
        self.block(self.entry.body, body)
        self.finish()
        blocks = analyse(self.code)
        slots = assign(self.code, blocks)
        directives = self.entry.directives
        encoded = encode(self.code, slots, self.constants)
        block = directives.get("reqntid")
        cluster = directives.get("reqnctapercluster")
        return DecodedProgram(
            name=self.entry.name,
            code=encoded.code,
            handlers=encoded.handlers,
            pool=encoded.pool,
            consts=encoded.consts,
            n_slots=slots.count,
            n_preds=self.layout.predicates,
            local_bytes=-(-self.layout.local // 16) * 16,
            static_smem=self.layout.shared,
            param_bytes=max((offset + size for offset, size in self.params), default=0),
            params=tuple(self.params),
            target=TARGETS[self.module.target],
            max_regs=directives.get("maxnreg", (0,))[0],
            lines=tuple(self.source.text.split("\n")),
            block=(block[0], block[1], block[2]) if block else None,
            cluster=(cluster[0], cluster[1], cluster[2]) if cluster else None,
            globals=bytes(self.global_data),
            relocations=tuple(self.constants.relocations),
        )

    # declarations

    def module_variables(self, root: Scope) -> None:
        for variable in self.module.variables:
            if variable.space in ("global", "const"):
                offset = self.place_global(variable)
                root.declare(variable.name, Symbol("global", offset))
            elif variable.space == "shared":
                root.declare(variable.name, self.layout.place(variable))
        offset = 0
        for parameter in self.entry.parameters:
            offset = -(-offset // parameter.align) * parameter.align
            root.declare(parameter.name, Symbol("param", offset))
            self.params.append((offset, parameter.size))
            offset += parameter.size

    def place_global(self, variable: Variable) -> int:
        padding = -len(self.global_data) % max(variable.align, 16)
        self.global_data += bytes(padding)
        offset = len(self.global_data)
        self.global_data += variable.data.ljust(variable.size, b"\0")
        return offset

    def nested_shared(self, block: Block) -> None:
        for statement in block.statements:
            if isinstance(statement, Block):
                for variable in statement.variables:
                    if variable.space == "shared":
                        raise PtxError.of(
                            "E301",
                            f"'{variable.name}': a .shared variable inside a nested scope is not modelled",
                            hint="declare it at the top of the kernel or of the module",
                        )
                self.nested_shared(statement)

    def duplicate(self, duplicate: DuplicateName, start: int) -> PtxError:
        return PtxError.at("E304", f"'{duplicate}' is declared twice in one scope", self.source, start, start + 1)

    # statements

    def block(self, block: Block, scope: Scope) -> None:
        for statement in block.statements:
            if isinstance(statement, Instruction):
                self.instruction(statement, scope)
            elif isinstance(statement, Label):
                key = scope.names[statement.name]
                assert isinstance(key, LabelKey)
                self.labels[key] = len(self.code)
            elif isinstance(statement, Block):
                try:
                    inner = scope.open(statement)
                except DuplicateName as duplicate:
                    raise self.duplicate(duplicate, _start(statement, self.entry.start)) from None
                self.block(statement, inner)

    def forms(self, at: Instruction) -> tuple[tuple[Form, Choices, tuple[Kind, ...]], ...]:
        found = self._forms.get(at.opcode)
        if found is None:
            matches = lookup(at.opcode)
            if not matches:
                raise self.fail("E301", f"'{at.opcode}' is not modelled", at, explain(at.opcode))
            if not matches[0][0].handler:
                raise self.fail("E301", f"'{at.opcode}' is not modelled", at, matches[0][0].hint)
            found = self._forms[at.opcode] = tuple(
                (form, choices, parse_kinds(form.operands.format_map(choices)))
                for form, choices in matches
                if form.handler
            )
        return found

    def instruction(self, at: Instruction, scope: Scope) -> None:
        ins = Ins("", 0, 0, (0, 0, 0, 0), [], at.line, TRUE)
        if at.guard is not None:
            try:
                ins.guard = Use(self.translator.register(at.guard.text, scope), int(at.guard_negated))
            except Mismatch as mismatch:
                raise self.fail("E304", f"guard: {mismatch}", at) from None
            if ins.guard.register.bits != 1:
                raise self.fail("E302", f"the guard '{at.guard.text}' is no predicate", at)
        best: Mismatch | None = None
        for form, choices, kinds in self.forms(at):
            try:
                self.emit(form, choices, kinds, at, scope, ins)
                return
            except Mismatch as mismatch:
                if best is None or mismatch.rank > best.rank:
                    best = mismatch
        message = str(best)
        code = "E304" if "declared here" in message or "no label" in message else "E302"
        raise self.fail(code, f"{at.opcode}: {message}", at)

    def emit(
        self, form: Form, choices: Choices, kinds: tuple[Kind, ...], at: Instruction, scope: Scope, ins: Ins
    ) -> None:
        ins.cls = getattr(isa, "C_" + (form.cls(choices) if callable(form.cls) else form.cls))
        ins.flags = form.flags
        special = kinds[0].kind if kinds else ""
        if special == "mov":
            moves.translate(self.translator, choices["t"], at.operands, scope, ins)
        elif special == "call":
            self.call(at, scope, ins)
        elif special == "brx":
            self.indexed_branch(at, scope, ins)
        elif form.handler in ("ld", "st") and (param := self.call_argument(at, scope)) is not None:
            moves.call_parameter(
                self.translator, self.layout, form.handler, choices["t"], param, at.operands, scope, ins
            )
        elif form.handler == "cvta" and choices["space"] == "param" and self.is_param(at, scope):
            moves.translate(self.translator, choices["t"], at.operands, scope, ins)
        else:
            self.translator.translate(kinds, at.operands, scope, ins)
            ins.handler = form.handler.format_map(choices)
            mods = [self.mod(spec, choices, ins) for spec in form.mods]
            ins.mods = (*mods, *(0,) * (4 - len(mods)))  # type: ignore[assignment]
            if form.handler == "bra" and choices.get("uni"):
                ins.flags |= isa.F_UNIFORM
        if ins.handler in ("ld", "st", "atom", "red"):
            self.check_vector(choices, ins)
        if len(ins.ops) > MAX_OPERANDS:
            raise Mismatch(f"{len(ins.ops)} operands; at most {MAX_OPERANDS} are modelled")
        if isinstance(ins.guard, Use):
            ins.uses.append(ins.guard.register)
        self.code.append(ins)

    def mod(self, spec: object, choices: Choices, ins: Ins) -> int:
        if spec == _REG_BITS:
            return moves.register_bits(ins, choices["t"])
        if isinstance(spec, str) and spec.startswith("IMM:"):
            operand = ins.ops[int(spec[4:])]
            assert isinstance(operand, Raw)
            return self.constants.words[~operand.reg]
        return number(spec, choices)  # type: ignore[arg-type]

    @staticmethod
    def check_vector(choices: Choices, ins: Ins) -> None:
        width = int(choices.get("vec", "v1")[1:])
        if width * TYPE_BITS[choices["t"]] > _WIDEST:
            raise Mismatch(f"an access of {width * TYPE_BITS[choices['t']]} bits; at most {_WIDEST} are possible")
        found = moves.vector_length(ins)
        if found != width:
            raise Mismatch(f"{width} elements are expected, found {found}")

    def is_param(self, at: Instruction, scope: Scope) -> bool:
        operand = at.operands[-1]
        name = operand.base if isinstance(operand, Memory) else operand
        meaning = scope.find(name.text) if isinstance(name, Name) else None
        return isinstance(meaning, Symbol) and meaning.space == "param"

    def call_argument(self, at: Instruction, scope: Scope) -> object | None:
        place = {True: 0, False: -1}[at.opcode.startswith("st")]
        return call_param(scope, at.operands[place]) if at.operands else None

    def call(self, at: Instruction, scope: Scope, ins: Ins) -> None:
        moves.vprintf(self.module.functions, at.operands, self.layout, scope, ins)

    def indexed_branch(self, at: Instruction, scope: Scope, ins: Ins) -> None:
        if len(at.operands) != 2:
            raise Mismatch("an index and a list of targets are expected")
        ins.handler = "brx_idx"
        ins.ops.append(self.translator.source(at.operands[0], "u32", scope, ins))
        key = self.translator.label(at.operands[1], scope)
        if key.targets is None:
            raise Mismatch(f"'{key.name}' is no .branchtargets list")
        ins.targets = [Target(self.translator.label(Name(name), scope)) for name in key.targets]

    def finish(self) -> None:
        """Resolve the labels; a kernel that runs off its end returns."""
        line = self.code[-1].line if self.code else 1
        self.code.append(Ins("ret", isa.C_BRANCH, 0, (0, 0, 0, 0), [], line, TRUE))
        for ins in self.code:
            for target in ins.targets:
                assert isinstance(target.label, LabelKey)
                target.index = self.labels[target.label]


def _start(block: Block, default: int) -> int:
    return next((s.start for s in block.statements if isinstance(s, Instruction | Label)), default)
