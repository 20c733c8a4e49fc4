"""What the emulator counts in PTX is what the walks through the machine code hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

pytest.importorskip("cutlass")  # CuTe DSL is an extra

import attn_dsl
from attn_dsl.emulator import LaunchReport
from attn_dsl.runtime import bind, random_inputs
from attn_dsl.runtime.kernels import SM90, Kernels
from attn_dsl.timing.follow import Follower, Program, Walk
from attn_dsl.timing.machine_code import of_cubin
from attn_dsl.timing.record import recorded

HEAD = "q: bf16[batch, seq_q, heads, dim]\nk, v: bf16[batch, seq_k, heads, dim]\n"
SPECS = {"causal": "mask = kv_idx <= q_pos\n", "full": "", "softcap": "score = 20.0 * tanh(score / 20.0)\n"}


@dataclass(frozen=True)
class Followed:
    report: LaunchReport
    walks: list[Walk]
    opcodes: list[str]

    def executed(self, opcode: str) -> int:
        return sum(count for name, count in self._counts().items() if name.startswith(opcode))

    def _counts(self) -> Counter[str]:
        return Counter(self.opcodes[place] for walk in self.walks for place in walk.places)


@pytest.fixture(scope="module", params=SPECS)
def followed(request: pytest.FixtureRequest) -> Followed:
    spec = attn_dsl.parse(HEAD + SPECS[request.param], name=request.param)
    extents = {"batch": 1, "seq_q": 700, "seq_k": 900, "heads": 1, "dim": 64}
    inputs = random_inputs(spec, extents, seed=1)
    call = bind(spec, (), {**inputs.tensors, **inputs.params}, False)
    (launch,) = recorded("sm90", lambda: Kernels(spec, SM90).launch(call, None, None))
    report = launch.replay(path=True, checks=False)
    code = of_cubin(launch.image, launch.kernel)
    follower = Follower(code, Program.of(launch.decoded))
    walks = [follower.walk(path) for path in report.paths]
    return Followed(report, walks, [instruction.opcode for instruction in code])


def test_no_event_is_lost(followed: Followed) -> None:
    assert [walk.lost for walk in followed.walks if walk.lost] == []


def test_products(followed: Followed) -> None:
    assert followed.executed("HGMMA") == followed.report.classes["mma_f16"] > 0


def test_special_functions(followed: Followed) -> None:
    """ptxas adds none to exponentials and tanh, and removes none."""
    emulated = followed.report.classes["ex2"]
    assert emulated > 0
    assert followed.executed("MUFU.EX2") == pytest.approx(emulated, rel=0.02)


def test_copies_and_barriers(followed: Followed) -> None:
    assert followed.executed("UTMALDG") + followed.executed("UTMASTG") <= followed.report.classes["tma"]
    assert followed.executed("UTMALDG") > 0
    events = Counter(event.handler for walk in followed.walks for event in walk.events.values())
    assert followed.executed("SYNCS.PHASECHK") == events["mbar_try_wait"] > 0
    assert events["mbar_arrive"] > 0


def test_waits_pass_at_their_first_try(followed: Followed) -> None:
    """The loop that a wait spins in lies behind the kernel, and its instructions have the lines of the wait."""
    assert followed.executed("NANOSLEEP") == 0
    assert followed.executed("SYNCS.PHASECHK.TRANS64.TRYWAIT") == followed.executed("SYNCS.PHASECHK")


def test_little_is_guessed(followed: Followed) -> None:
    foreign = sum(walk.foreign for walk in followed.walks)
    assert foreign < 0.05 * sum(len(walk.places) for walk in followed.walks)
