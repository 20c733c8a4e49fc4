"""Kernel templates in CuTe DSL, one folder per GPU generation; importing this package needs no CuTe DSL."""
