"""Seeded random inputs for the front end: raw bytes, token soup, mutated files, and specs that nearly make sense.

Hypothesis makes a few hundred examples in a second; this makes tens of thousands. An input depends on its seed
and on the corpus only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_SPACED = (
    "align and as axis const def descale else false from if import in let lengths lse_base mask not or pack paged "
    "param schedule scale score sink true unbounded view q k v o lse batch seq_q seq_k heads kv_heads dim dim_v "
    "q_idx kv_idx q_pos h b bf16 f32 i32 int float bool dtype window std used cu_seqlens table offset gqa auto "
    "e sum any all min max abs clamp floor exp sqrt x y _ 0 1 2 0x1f 0b1 0.5 1e-6 1_000 1e999 "
    "9223372036854775807 99999999999999999999 ( ) [ ] { } , : = -> . .. ..= + - * / // % < <= > >= "
    "== != & | ^ ~ << >> && || ! ; ' \" @ $ ** # ## \\ é ∞"
)
_TOKENS = (*_SPACED.split(), "\n", "\n", "\n", "\t", "\r\n", "\0", "\u2028")
_AXES = ("batch", "seq_q", "seq_k", "heads", "kv_heads", "dim", "dim_v", "total_q", "total_k", "pages", "page_size")
_DTYPES = ("f32", "f16", "bf16", "e4m3", "i32", "i8", "bool", "elem")


def one_input(seed: int, corpus: Sequence[str]) -> bytes:
    """The input of one seed; `corpus` holds valid files to mutate."""
    rng = random.Random(seed)
    makers: tuple[Callable[[random.Random, Sequence[str]], bytes], ...] = (_bytes, _soup, _mutated, _spec, _spec, _spec)
    return rng.choice(makers)(rng, corpus)


def _bytes(rng: random.Random, _corpus: Sequence[str]) -> bytes:
    data = bytearray(rng.randbytes(rng.choice((0, 1, 7, 60, 300))))
    if rng.random() < 0.5:  # mostly ASCII: gets past the check of the encoding
        data = bytearray(byte & 127 or 32 for byte in data)
    return bytes(data)


def _soup(rng: random.Random, _corpus: Sequence[str]) -> bytes:
    glue = rng.choice((" ", " ", ""))
    return glue.join(rng.choices(_TOKENS, k=rng.choice((1, 3, 10, 60)))).encode()


def _mutated(rng: random.Random, corpus: Sequence[str]) -> bytes:
    text = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 5))):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 1, 1, 2, 8, 40)))
        lines = text.split("\n")
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:start] + text[end:]
        elif kind == 1:
            text = text[:start] + rng.choice(_TOKENS) + text[end:]
        elif kind == 2:
            text = text[:end] + text[start:end] + text[end:]
        elif kind == 3:
            rng.shuffle(lines)
            text = "\n".join(lines)
        elif kind == 4:
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
        else:
            words = text.split(" ")
            words[rng.randrange(len(words))] = rng.choice(_TOKENS)
            text = " ".join(words)
    return text.encode("utf-8", "surrogatepass")


class _SpecWriter:
    """Writes a spec from the top: declares names, then uses them, mostly with the types they have."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = {
            "int": ["q_idx", "kv_idx", "q_pos", "h", "kv_h", "b", "seq_q", "seq_k", "heads"],
            "float": [],
            "bool": [],
        }
        self.functions: list[tuple[str, list[str], str]] = []
        self.captures: list[tuple[str, int, str]] = []

    def write(self) -> str:
        rng = self.rng
        lines = []
        packed, paged = rng.random() < 0.2, rng.random() < 0.15
        rows_q = "total_q" if packed else "batch, seq_q"
        rows_k = "pages, page_size" if paged else "total_k" if packed else "batch, seq_k"
        heads_k = rng.choice(("kv_heads", "kv_heads", "heads"))
        lines.append(f"q: {rng.choice(_DTYPES[:4])}[{rows_q}, heads, dim]")
        lines.append(f"k, v: {rng.choice(_DTYPES[:4])}[{rows_k}, {heads_k}, {rng.choice(('dim', 'dim', 'dim_v'))}]")
        if packed:
            lines += ["cq: i32[batch + 1]", "lengths q { cu_seqlens = cq }", "lengths k { cu_seqlens = cq }"]
        if paged:
            lines += ["t: i32[batch, m]", "u: i32[batch]", "paged { table = t }", "lengths k { used = u }"]
        for place in range(rng.randrange(4)):
            lines.append(self._definition(place))
        if rng.random() < 0.9:
            lines.append(f"mask = {self.expression('bool', 4)}")
        if rng.random() < 0.6:
            self.names["float"].append("score")
            lines.append(f"score = {self.expression('float', 4)}")
        settings = (
            "align top_left",
            f"align offset({self.expression('int', 2)})",
            f"scale = {self.expression('float', 2)}",
            "lse_base = 2",
            f"descale {rng.choice('qkvo')} = {self.expression('float', 2)}",
            "pack gqa off",
            "sink = 0.5",
            "schedule { tile_q = 128, stages = 2 }",
            "axis dim = 64",
            "# end",
        )
        lines += rng.sample(settings, rng.randrange(3))
        if rng.random() < 0.3:
            rng.shuffle(lines)
        if rng.random() < 0.15:
            lines[rng.randrange(len(lines))] = " ".join(rng.choices(_TOKENS[:60], k=5))
        return "\n".join(lines) + "\n"

    def _definition(self, place: int) -> str:
        rng = self.rng
        kind = rng.choice(("int", "float", "bool"))
        name = f"{kind}_{place}"
        if (choice := rng.randrange(4)) == 0:
            axes = rng.choices(_AXES[:5], k=rng.randint(1, 3))
            self.captures.append((name, len(axes), kind))
            return f"{name}: {({'int': 'i32', 'float': 'f32', 'bool': 'bool'})[kind]}[{', '.join(axes)}]"
        if choice == 1:
            value = self.expression(kind, 3)
            self.names[kind].append(name)
            return f"let {name} = {value}"
        if choice == 2 and kind != "bool":
            self.names[kind].append(name)
            low = rng.choice(("0", "1", "2")) + (".0" if kind == "float" else "")
            return f"param {name}: {kind} in {low}.. = {low}" if rng.random() < 0.7 else f"param {name}: {kind}[heads]"
        params = [rng.choice(("int", "float", "bool")) for _ in range(rng.randrange(3))]
        before = {key: list(names) for key, names in self.names.items()}
        for index, param in enumerate(params):
            self.names[param].append(f"a{index}")
        value = self.expression(kind, 3)
        self.names = before
        self.functions.append((name, params, kind))
        written = ", ".join(f"a{index}: {param}" for index, param in enumerate(params))
        return f"def {name}({written}) -> {kind} = {value}"

    def expression(self, kind: str, depth: int) -> str:
        rng = self.rng
        if rng.random() < 0.02:
            kind = rng.choice(("int", "float", "bool"))
        if depth == 0 or rng.random() < 0.15:
            return self._leaf(kind)
        inner = depth - 1
        choice = rng.random()
        if choice < 0.12 and self.functions:
            name, params, _ = rng.choice(self.functions)
            return f"{name}({', '.join(self.expression(param, inner) for param in params)})"
        if choice < 0.22 and self.captures:
            name, rank, _ = rng.choice(self.captures)
            return f"{name}[{', '.join(self.expression('int', inner) for _ in range(rank))}]"
        if choice < 0.30:
            yes, condition, no = (self.expression(part, inner) for part in (kind, "bool", kind))
            return f"({yes} if {condition} else {no})"
        if kind == "bool":
            return self._truth(inner)
        if choice < 0.38:
            return f"{rng.choice(('min', 'max'))}({self.expression(kind, inner)}, {self.expression(kind, inner)})"
        if choice < 0.44:
            return f"sum(i in 0..{rng.randrange(5)}: {self.expression(kind, inner)})"
        if kind == "float" and choice < 0.6:
            return f"{rng.choice(('exp', 'tanh', 'sqrt', 'sigmoid', 'log2'))}({self.expression('float', inner)})"
        operators = ("+", "-", "*", "//", "%", "&", "<<") if kind == "int" else ("+", "-", "*", "/")
        left, right = self.expression(kind, inner), self.expression(kind, inner)
        return f"({left} {rng.choice(operators)} {right})" if rng.random() < 0.8 else f"-{left}"

    def _truth(self, depth: int) -> str:
        rng = self.rng
        if rng.random() < 0.5:
            number = rng.choice(("int", "float"))
            chain = [self.expression(number, depth) for _ in range(rng.choice((2, 2, 3)))]
            return f" {rng.choice(('<', '<=', '==', '!=', '>'))} ".join(f"({part})" for part in chain)
        if rng.random() < 0.2:
            return f"not ({self.expression('bool', depth)})"
        return f"({self.expression('bool', depth)} {rng.choice(('and', 'or'))} {self.expression('bool', depth)})"

    def _leaf(self, kind: str) -> str:
        rng = self.rng
        if self.names[kind] and rng.random() < 0.6:
            return rng.choice(self.names[kind])
        if rng.random() < 0.01:
            return "unknown"
        return {
            "int": lambda: str(rng.choice((0, 1, 2, 7, 64, 1 << 20, 1 << 40, "unbounded"))),
            "float": lambda: rng.choice(("0.0", "0.5", "1.0", "2.5e3", "1e-6")),
            "bool": lambda: rng.choice(("true", "false")),
        }[kind]()


def _spec(rng: random.Random, _corpus: Sequence[str]) -> bytes:
    return _SpecWriter(rng).write().encode()
