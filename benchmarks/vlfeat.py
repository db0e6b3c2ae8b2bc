"""VLFeat's dense SIFT and Fisher vectors by ctypes, from Debian's package libvlfeat1."""

from ctypes import CDLL, POINTER, Structure, c_double, c_float, c_int, c_uint32, c_uint64, c_void_p
from ctypes.util import find_library

import numpy as np
from numpy.typing import NDArray

from ml.types import Crops

FLOAT = 1
ROOTED_AND_NORMALISED = 3

Floats = NDArray[np.float32]


class Dsift(Structure):
    """The public fields of VlDsiftFilter (VLFeat 0.9.21, vl/dsift.h)."""

    _fields_ = [
        *((name, c_int) for name in ("width", "height", "step_x", "step_y", "min_x", "min_y", "max_x", "max_y")),
        *((name, c_int) for name in ("bins_t", "bins_x", "bins_y", "size_x", "size_y", "flat_window")),
        ("window", c_double),
        ("frames_count", c_int),
        ("size", c_int),
        ("frames", c_void_p),
        ("descriptors", POINTER(c_float)),
    ]


def library() -> CDLL | None:
    """Load libvl; None if it is not installed."""
    name = find_library("vl")
    if name is None:
        return None
    vl = CDLL(name)
    vl.vl_dsift_new_basic.restype = POINTER(Dsift)
    vl.vl_fisher_encode.argtypes = [c_void_p, c_uint32, c_void_p, c_uint64, c_uint64, *[c_void_p] * 3, c_uint64, c_int]
    vl.vl_set_num_threads(1)
    return vl


def dense_sift(vl: CDLL, crop: Crops) -> Floats:
    """Return (11319, 128) SIFT of the 147 x 77 patches of a (170, 100) crop, with a flat window and bins of 6 pixels.

    Its 128 numbers: cell's row, cell's column, orientation.
    """
    handle = vl.vl_dsift_new_basic(100, 170, 1, 6)
    dsift = handle.contents
    dsift.flat_window = 1
    dsift.min_x, dsift.min_y, dsift.max_x, dsift.max_y = 3, 3, 97, 167
    vl._vl_dsift_update_buffers(handle)
    pixels = np.ascontiguousarray(crop, np.float32)
    vl.vl_dsift_process(handle, pixels.ctypes.data_as(POINTER(c_float)))
    descriptors = np.ctypeslib.as_array(dsift.descriptors, (dsift.frames_count, dsift.size)).copy()
    vl.vl_dsift_delete(handle)
    return descriptors


def fisher_vector(
    vl: CDLL, means: Floats, variances: Floats, weights: Floats, patches: Floats, flags: int = ROOTED_AND_NORMALISED
) -> Floats:
    """Encode (T, d) patches with k Gaussians: (2 k d,) derivatives, by the means and then by the deviations."""
    k, d = means.shape
    vector = np.empty(2 * k * d, np.float32)
    given = [np.ascontiguousarray(a, np.float32) for a in (means, variances, weights, patches)]
    m, v, w, z = (a.ctypes.data for a in given)
    vl.vl_fisher_encode(vector.ctypes.data, FLOAT, m, d, k, v, w, z, len(patches), flags)
    return vector
