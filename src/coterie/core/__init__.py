"""Everything that is compiled, and nothing else.

The folder is the key of the kernel cache and the fingerprint of experiments: editing a file here compiles kernels anew,
and editing any other file never does.
"""
