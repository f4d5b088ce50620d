"""What the GPU path gives and how quick it is: `python -m bench.gpu`. See `bench.gpu.__main__`."""
