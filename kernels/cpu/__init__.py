"""C++ kernels for CPUs: one call a step for the Llama family, built on first use. Importing this builds nothing."""
