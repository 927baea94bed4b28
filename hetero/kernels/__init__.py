"""CPU kernels in numba, device kernels in torch; each has one contract and a plain reference it is tested against."""
