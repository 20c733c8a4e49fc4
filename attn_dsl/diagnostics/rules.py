"""Every rule that can be broken, stated once, under a stable code. `docs/errors.md` has an example of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A code never changes its meaning and is never reused."""

    code: str
    sentence: str


_SENTENCES = {
    # E20x: the text
    "E200": "A spec is a readable file of UTF-8 text.",
    "E201": "A spec file has at most 256 KiB.",
    "E202": "A file has at least one statement.",
    "E203": "Every character belongs to a token of the language.",
    "E204": "The text follows the grammar.",
    "E205": "Every bracket is closed.",
    "E206": "Brackets and operators nest at most 100 deep.",
    "E207": "An integer literal fits 64 bits, and a float constant fits f32.",
    "E208": "A file has at most 1,000 statements.",
    # E21x: imports
    "E210": "An import names an existing library file.",
    "E211": "An import stays inside the standard library or the folder of the importing spec.",
    "E212": "Imports form no cycle.",
    "E213": "An import names a definition of the library it reads.",
    "E214": "Only a library can be imported; a library declares no tensors, parameters or clauses.",
    "E215": "A spec reads at most 64 libraries.",
    # E22x: names
    "E220": "A name is defined before it means something.",
    "E221": "A name is defined once and is no reserved, index, axis or builtin name.",
    "E222": "Functions do not call themselves, and definitions do not use themselves.",
    "E223": "A constant given to compile() is a constant or an axis of the spec.",
    "E224": "An index name is used only where it has a value.",
    # E23x: types
    "E230": "An operator gets operands of the types it is defined for.",
    "E231": "A call gives a function the arguments it declares.",
    "E232": "A definition has the type it declares.",
    "E233": "A mask is bool; score, scale and sink are float.",
    "E234": "A compile-time value uses literals and constants only.",
    "E235": "A type is one of those the language has.",
    # E24x: tensors and axes
    "E240": "A spec declares q, k and v.",
    "E241": "q, k, v, o and lse have the axes of one of their layouts.",
    "E242": "The axes of a tensor differ from each other.",
    "E243": "The number of heads is a multiple of the number of K/V heads.",
    "E244": "A read gives one index to each axis of a capture.",
    "E245": "An index variable reads its own axis.",
    "E246": "An index lies inside its axis for some value.",
    "E247": "A view cuts k or v from a declared tensor, inside its axes.",
    "E248": "Lengths, paging and geometry tensors fit the layout they describe.",
    "E249": "An axis extent is at least 1 and within its limit.",
    # E25x: what the language is for
    "E250": "A statement that may appear once appears once.",
    "E251": "A spec is one masked, scored softmax attention.",
    "E252": "A setting has a known key and a value the key allows.",
    "E253": "Every declared tensor, parameter and constant has a use.",
    "E254": "A parameter's default and range agree.",
    # E26x: proofs and limits
    "E260": "A divisor is proved nonzero.",
    "E261": "An int expression stays inside 64 bits.",
    "E262": "A shift count is proved to lie in 0..64.",
    "E263": "A spec has at most 20,000 distinct expression nodes, and a reduction at most 4,096 terms.",
    "E264": "A reduction without a neutral element has at least one term.",
    # W26x: worth knowing
    "W265": "The mask can be true for some pair.",
    "W266": "An index is proved inside its axis; otherwise it is clamped to it.",
    "W267": "Every definition and import of a spec has a use.",
    # E27x: a call
    "E270": "A call gives every tensor and parameter once, and no others.",
    "E271": "A tensor has the declared number of axes and equal extents where axes have one name.",
    "E272": "A tensor has the declared dtype.",
    "E273": "All tensors of a call are on one device.",
    "E274": "A parameter's value has its type and lies in its range.",
    "E275": "Cumulative lengths start at 0, do not decrease and end inside their tensor.",
    "E276": "Used lengths and left padding lie inside their storage.",
    "E277": "Every page-table entry of a used page names a page of the pool.",
    "E278": "An output buffer has the shape and dtype of the output and shares no memory with an input.",
    "E279": "A tensor's layout in memory is one the target can read.",
    # E28x: targets and tools
    "E280": "A target is one of those this package knows.",
    "E281": "A target has the capability the spec asks for.",
    "E282": "A target's hardware and software are present.",
    "E283": "Command-line values have the form the option documents.",
    "E284": "A file that a command reads or writes besides specs can be read and written.",
    # E29x: plans of kernels
    "E290": "A plan's head dimensions are multiples of 8 that its template has, and padded to whole matrix products.",
    "E291": "A plan's tiles are multiples of what one matrix instruction takes, and its rings have two stages.",
    "E292": "A plan's shared memory fits one thread block.",
    "E293": "A plan's registers fit one multiprocessor and hold its accumulators.",
    "E294": "The captured tensors and parameters that a plan reads are its arguments, and fit those of a kernel.",
    "E295": "A plan's expressions are small enough to be written out.",
    "E296": "A plan's scores, weights and outputs fit tensor memory, and none lies on another.",
    "E297": "A plan chooses what its template has.",
    "E298": "Every barrier of a plan gets the arrivals that it counts, and somebody waits for them.",
    # E30x: PTX text given to the emulator
    "E300": "PTX text follows the grammar of the PTX ISA.",
    "E301": "Every PTX opcode, modifier and directive of a kernel is one the emulator models.",
    "E302": "The operands of a PTX instruction fit its opcode.",
    "E303": "PTX is for a target and an ISA version the emulator models.",
    "E304": "A PTX name is declared once and before it means something.",
    # E31x: the emulated device
    "E310": "The emulator's native code can be built: there is a C compiler and a folder to keep the result.",
    "E311": "CuTe DSL has the version the emulator knows.",
    "E312": "A launch has a shape, arguments and shared memory that the device can carry out.",
    "E313": "One device is active at a time, and is used by the thread that opened it.",
    "E314": "Memory given to a kernel stays allocated and keeps its size until the launch is over.",
    "E315": "A device has one of the architectures the emulator models.",
    "E319": "A kernel runs without findings.",
    # E32x: compiled kernels and bundles
    "E320": "A bundle is complete, and every file of it has the checksum that its SHA256SUMS states.",
    "E321": "A bundle is of the format, the version and a machine that it is loaded on.",
    "E322": "A bundle has a kernel for the shape class of a call.",
    "E323": "Kernels of a bundle are linked by a C compiler.",
    "E324": "A launch has the grid of its kernel's plan, or None.",
    "E325": "What is asked of the kernel of a compiled object is asked when it has one.",
    # E40x: what is converted from other tools
    "E400": "A function is converted if the language has a spelling for everything it computes.",
    "E401": "A converted function gives what the original gives.",
    "E402": "A name of a function has a meaning in an attention: an index, a length, a tensor, or a number.",
    "E403": "Lists of blocks name each block of keys of a row once, and fit the table that a spec reads.",
    # E41x: specs inside other libraries
    "E410": "A spec inside transformers computes on dense tensors; padding and caches are the model's.",
    "E411": "Every input of a spec inside transformers has a value in the layer that calls it.",
    "E412": "A spec inside transformers does what the layer asks for: its mask, its scale, and nothing is dropped.",
}

RULES: dict[str, Rule] = {code: Rule(code, sentence) for code, sentence in _SENTENCES.items()}
