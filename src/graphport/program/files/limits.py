"""How large anything in a file may be.

A file is data from elsewhere. What it makes a reader compute or allocate is bounded by these
numbers and by the bytes that it really holds. They are far beyond what programs need: the deepest
expression of sizes in the models of the test-suite has nine levels.
"""

from __future__ import annotations

MEMBERS = 16
"""Of the zip archive."""

JSON_BYTES = 1 << 29
HEADER_BYTES = 100_000_000
"""Of the header of the tensors, as in the safetensors format itself."""

DIGITS = 40
"""Of an integer: no number in a program needs more than 128 bits."""

INTEGER = 1 << 127
SIZE = 1 << 63
"""Sizes, strides and offsets are below."""

TEXT = 1 << 20
"""Characters of a text that is for people, such as a stack trace."""

NAME = 1_024
"""Characters of the name of an argument or symbol."""

PATH = 4_096
"""Characters of the path of a module, and of a node that is named after one."""

PATH_PARTS = 128
"""Modules within one another: torch walks through them recursively."""

PATHS = 1 << 25
"""Characters of all paths of modules, those of the modules that they are within included."""

STACK_ENTRIES = 32
MORE_STACK_ENTRIES = 100_000
"""Modules that nodes are within: so many per node on average, and so many besides."""

RANK = 64
VALUE_DEPTH = 32
TREE_DEPTH = 64
GRAPH_DEPTH = 32

EXPRESSION_DEPTH = 100
EXPRESSION_NODES = 1 << 14
"""When written out, shared parts as often as they occur: as in n - n//3, and that of it, ..."""

ALL_EXPRESSION_NODES = 1 << 18
MORE_EXPRESSION_NODES = 64
"""Of all expressions together: so many, and so many more for each."""

OPERANDS = 64
"""Of a minimum, a maximum, or of conditions that are connected."""

COMPARISONS = 1 << 16
MORE_COMPARISONS = 16
"""Of the operands of minima, and of the terms of products: in all, and for each expression."""

DEGREE = 64
"""The sum of powers in a product, operations within it included."""

UNBOUNDED_DEGREE = 16
"""What a power with a symbol in the exponent counts as."""

FACTOR_TERMS = 4_096
FACTS = 20_000

OVERLAPPING_BYTES = 1 << 30
"""Of a tensor whose elements share memory (an expanded one), if it were copied."""

ALIGNMENT = 64
"""Of the data of tensors within the file."""
