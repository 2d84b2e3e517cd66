"""All compiled code, and nothing else.

The content of this folder is the key of the kernel cache and the fingerprint of experiments: an edit of a file here
recompiles kernels, an edit of any other file never does.
"""
