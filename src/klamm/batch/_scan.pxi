# Read records without creating objects: keys, timestamps, and whether all are valid.

cdef extern from "scan.h" nogil:
    ctypedef struct klamm_pieces:
        klamm_scan found
        int32_t outside[100]
        int32_t unkeyed[100]
        int outside_count, unkeyed_count
        int64_t first_outside

    void klamm_begin_pieces(klamm_pieces *s, int64_t earliest, int64_t latest)
    int klamm_take_piece(klamm_pieces *s, const klamm_batch *batch, const uint8_t *p, const uint8_t *end)
    int klamm_is_whole(const klamm_pieces *s, const klamm_batch *batch)


cdef class RecordScan:
    """Reads every record of one whole batch, decompressed in pieces: at no time more than a piece is in memory.

    The records are as long as they like; what the codec itself holds at a time, and all of them together, are bounded
    (codecs.pieces). It stops at the first that cannot be read. CorruptBatch, or RecordTooLarge.

    Timestamps outside of [`earliest`, `latest`] are listed, the first hundred. -1 counts as none.
    """

    cdef klamm_batch batch
    cdef klamm_pieces state

    def __init__(self, data, int64_t earliest=INT64_MIN, int64_t latest=INT64_MAX, *, max_held=None):
        cdef View view = viewed(data)
        cdef int code = klamm_read_batch(view.data, view.size, &self.batch)
        if code != KLAMM_OK:
            raise damage(code, view.data, 0, 0, False)
        klamm_begin_pieces(&self.state, earliest, latest)
        cdef int codec = self.batch.attributes & KLAMM_CODEC_MASK
        if not codec:
            self.take(view, KLAMM_HEADER, self.batch.size)
        else:
            pieces = _codecs.pieces(codec, memoryview(view)[KLAMM_HEADER:self.batch.size], max_held=max_held)
            while (piece := self.next_piece(pieces)) is not None:
                self.take(viewed(piece), 0, len(piece))
        if not klamm_is_whole(&self.state, &self.batch):
            raise not_readable(&self.batch, 0)

    cdef object next_piece(self, object pieces):
        try:
            return next(pieces, None)
        except CorruptBatch as error:
            raise bad_records(&self.batch, 0, error.message) from error.__cause__

    cdef int take(self, View view, Py_ssize_t start, Py_ssize_t end) except -1:
        cdef int code
        cdef const uint8_t *data = view.data
        with nogil:
            code = klamm_take_piece(&self.state, &self.batch, data + start, data + end)
        if code != KLAMM_MAPPED:
            raise not_readable(&self.batch, 0)
        return 0

    @property
    def result(self):
        """Whether each record has a key, smallest timestamp, largest timestamp: as scan_records returns it."""
        found = self.state.found
        return bool(found.is_keyed), found.min_timestamp, found.max_timestamp

    @property
    def outside(self):
        """The indexes of the first hundred records with timestamps outside of the bounds."""
        return tuple([self.state.outside[index] for index in range(self.state.outside_count)])

    @property
    def unkeyed(self):
        """The indexes of the first hundred records without a key."""
        return tuple([self.state.unkeyed[index] for index in range(self.state.unkeyed_count)])

    @property
    def first_outside(self):
        """The timestamp of the first of them."""
        return self.state.first_outside
