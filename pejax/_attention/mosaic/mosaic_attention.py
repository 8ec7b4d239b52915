"""Attention by kernels on Pallas's Mosaic GPU backend, for GPUs of compute capability 9.0 (Hopper)."""

from pejax._attention.kernels.fallback import blockwise_call
from pejax._attention.kernels.kernel_call import Kernels, Way
from pejax._attention.mosaic.mosaic_call import Call

KERNELS = Kernels(lambda static, operands: _ways(static, operands), Call, blockwise_call)


def _ways(static, operands):
    if operands.shared.distance_bias is None:
        return (Way("none"),)
    return Way("diagonals"), Way("blockwise")
