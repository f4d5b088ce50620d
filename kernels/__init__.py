"""Attention and KV-cache kernels behind one small API. Imports nothing of ours and, here, nothing at all.

(transformers probes for a package of this name; keep this module empty of imports and versions.)
"""
