"""Run the benchmark executor: how fast this machine's devices compute and move data, and whether they compute rightly.

Runs in the user's image, by ``python3 -m falcon_bench``: the standard library, and PyTorch or NumPy where the image has
them. Python 3.6 and later. TRANSOM §IV-A (warm-up and error check) and FALCON §4.3 measure nodes so.
"""
