"""Finds code that needs more of the CPU than the place it stands in allows.

The linker keeps one copy of an inline function. If the AVX-512 object brings a copy of, say,
std::sort, that copy may become everybody's, and the library dies on an older CPU, in code that
looks innocent.
"""

import re
import subprocess

FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
# Vector instructions of AVX and later begin with v, also those on the 128-bit registers.
VECTOR = re.compile(r"^\s*[0-9a-f]+:\s+(?:\{evex\} )?v\w+\s.*%([xyz])mm")
# Mangled, so that a template of another namespace with one of ours as its argument is not excused.
# A lambda, _ZZ, is named after the function that it stands in.
ALLOWED = {
    "avx2": re.compile(r"^_Z+NK?15fused_attention3cpu4avx2"),
    "avx512": re.compile(r"^_Z+NK?15fused_attention3cpu(6avx512|11avx512_bf16)"),
}


def leaks(library):
    """Functions of a shared library that use AVX outside the namespace of an ISA that has it."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(library)]
    found = set()
    seen = dict.fromkeys(ALLOWED, 0)
    function = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as disassembly:
        for line in disassembly.stdout:
            if match := FUNCTION.match(line):
                function = match[1]
            elif match := VECTOR.match(line):
                if ALLOWED["avx512"].match(function):
                    seen["avx512"] += 1
                elif ALLOWED["avx2"].match(function) and match[1] != "z":
                    seen["avx2"] += 1
                else:
                    found.add(function)
    assert disassembly.returncode == 0
    return found, seen


def external_symbols(objects):
    """Symbols that object files define for others to see, weak ones included."""
    command = ["nm", "--defined-only", "--extern-only", "--format=posix", *map(str, objects)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in listing.splitlines() if len(line.split()) > 2}
