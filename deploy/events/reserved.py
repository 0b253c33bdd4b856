"""A new HDF5 file on disk space that is reserved before it is written to.

HDF5 crashes on a full disk; a reservation that fails is an error that can be told.
"""

from __future__ import annotations

import os
from pathlib import Path

import h5py

CHUNK_BYTES = 1 << 16
# More than HDF5 may hold back in its caches: two chunks per dataset, and metadata.
_MARGIN_BYTES = 4 << 20


class ReservedFile:
    """A file that nobody else knows yet, and thus without a lock: NFS may have none."""

    def __init__(self, path: Path) -> None:
        self.hdf5 = h5py.File(path, "w", locking=False, rdcc_nbytes=2 * CHUNK_BYTES)
        self._descriptor, self._reserved = os.open(path, os.O_RDWR), 0

    def reserve(self, upcoming: int) -> None:
        """Reserve space for so many bytes more; OSError if there is none."""
        needed = self.hdf5.id.get_filesize() + 2 * upcoming + _MARGIN_BYTES
        if needed <= self._reserved:
            return
        # In steps larger than needed: one system call for many events.
        wanted = needed + _MARGIN_BYTES
        try:
            # Each byte once: where a file system cannot do this, as NFS 3, each block is touched.
            os.posix_fallocate(self._descriptor, self._reserved, wanted - self._reserved)
        except OSError as error:  # which has no name
            raise OSError(error.errno, error.strerror, self.hdf5.filename) from error
        self._reserved = wanted

    def finish(self) -> None:
        """Close the HDF5 file, and give back what it does not need."""
        self.hdf5.flush()
        size = self.hdf5.id.get_filesize()
        self.hdf5.close()
        os.ftruncate(self._descriptor, min(size, os.fstat(self._descriptor).st_size))

    def close(self) -> None:
        self.hdf5.close()
        os.close(self._descriptor)
