"""The loop that runs lark's LALR table over the scanner's tokens.

lark compiles the grammar, and its callbacks build the tree. Its own loop hashes rules and compares token names in
Python at every step, which costs two seconds on the largest legal file; here both are looked up once, in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..diagnostics import Source
from .tokens import END, Token

if TYPE_CHECKING:
    from lark import Lark


class _Reduce(NamedTuple):
    size: int  # parts the rule takes from the stack
    rule: str
    build: Callable[[list[Any]], Any] | None  # None: the one part is the result


# A state is its row of the table: token type or rule -> the next state, or the reduction to make first.
_State = dict[str, Any]


_END = Token(END, "", 0, Source("", ""))


class Unexpected(Exception):
    """The token at `index` fits nothing; `expected` are the token types that would have."""

    def __init__(self, index: int, expected: frozenset[str]) -> None:
        self.index = index
        self.expected = expected


class Automaton:
    """lark's tables for some start rules; parsing leaves no state behind, so threads can share one."""

    def __init__(self, lark: Lark, starts: Sequence[str]) -> None:
        from lark.parsers.lalr_analysis import Shift

        self._ends: dict[str, tuple[_State, _State]] = {}
        states: dict[Any, _State] = {}
        for start in starts:
            table = lark.parse_interactive(start=start).parser_state.parse_conf
            if not states:
                states = {number: {} for number in table.states}
                for number, row in table.states.items():
                    for name, (action, target) in row.items():
                        step = states[target] if action is Shift else _reduction(target, table.callbacks)
                        states[number][str(name)] = step
            self._ends[start] = (states[table.start_state], states[table.end_state])

    def first(self, start: str) -> frozenset[str]:
        """The token types a text of this rule can start with."""
        return frozenset(name for name in self._ends[start][0] if name.isupper())

    def parse(self, start: str, tokens: list[Token]) -> Any:
        """The value of `tokens` as one `start`.

        Raises:
            Unexpected: where the tokens leave the grammar; index `len(tokens)` is their end.
        """
        state, last = self._ends[start]
        states: list[_State] = [state]
        values: list[Any] = []
        for index, token in enumerate([*tokens, _END]):
            kind = token.type
            while True:
                step = state.get(kind)
                if step.__class__ is dict:
                    state = step
                    states.append(state)
                    values.append(token)
                    break
                if step is None:
                    raise Unexpected(index, self._expected(start, tokens[:index]))
                size, rule, build = step
                if build is None:
                    states.pop()
                else:
                    if size:
                        parts = values[-size:]
                        del values[-size:], states[-size:]
                    else:
                        parts = []
                    values.append(build(parts))
                state = states[-1][rule]
                states.append(state)
                if state is last and kind == END:
                    return values[-1]
        raise AssertionError("the end is never shifted")

    def _expected(self, start: str, tokens: list[Token]) -> frozenset[str]:
        """The token types that can follow `tokens`.

        A refused token may have asked for reductions before it was refused, so the states are found anew.
        """
        states = [self._ends[start][0]]
        for token in tokens:
            self._advance(token.type, states)
        return frozenset(kind for kind in states[-1] if kind.isupper() and self._advance(kind, states.copy()))

    def _advance(self, kind: str, states: list[_State]) -> bool:
        """Make the reductions that a token asks for and shift it; whether it was accepted."""
        while True:
            step = states[-1].get(kind)
            if not isinstance(step, _Reduce):
                if step is not None:
                    states.append(step)
                return step is not None
            if step.size:
                del states[-step.size :]
            states.append(states[-1][step.rule])
            if kind == END and any(states[-1] is last for _, last in self._ends.values()):
                return True


def _reduction(rule: Any, callbacks: Any) -> _Reduce:
    single = len(rule.expansion) == 1 and not rule.expansion[0].name.startswith("_")  # "_": several parts in one
    passes = single and rule.options.expand1 and rule.alias is None
    return _Reduce(len(rule.expansion), str(rule.origin.name), None if passes else callbacks[rule])
