# Records that were returned, and how many of them the caller has taken.


@cython.final
cdef class Records:
    """Records of one partition, which count as handed out one by one, by iteration, or all at once, by `batch`.

        partition   whose records they are
        begin       the position before them
        end         the offset behind them
        offset      the next one that is not handed out; `position`: with the leader epoch of the record before it
        source      what a Batch has of the same name

    There is no moment in which a record has left the iterator and `offset` has not moved, or the other way round.
    """
    cdef readonly object partition
    cdef public object source
    cdef readonly int64_t begin
    cdef readonly int64_t end
    cdef int32_t epoch_before
    cdef int32_t epoch
    cdef object records                 # a Batch, without its fields; None: not needed any more
    cdef object offsets                 # of the records; None: they lie in a row, from `begin` on
    cdef readonly Py_ssize_t index      # of the next one
    cdef Py_ssize_t size

    def __init__(self, partition, before, end, records=(), offsets=None):
        """Set positions and offsets; `offsets` None: the records follow on from `before`."""
        self.partition = partition
        self.begin, self.epoch_before = before
        self.end, self.epoch = end
        self.records, self.offsets = new_batch(records), offsets
        self.size = PyList_GET_SIZE(self.records)

    cdef Records at(self, Py_ssize_t index):
        """Return what begins at that record, and has none."""
        cdef Records found = Records.__new__(Records)
        found.partition = self.partition
        found.begin = found.end = self.offset_of(index)
        found.epoch_before = found.epoch = self.epoch if index else self.epoch_before
        return found

    cdef int64_t offset_of(self, Py_ssize_t index) except -1:
        if index >= self.size:
            return self.end
        if index == 0:
            return self.begin
        return self.begin + index if self.offsets is None else self.offsets[index]

    @property
    def offset(self):
        return self.offset_of(self.index)

    @property
    def position(self):
        return _Position(self.offset_of(self.index), self.epoch if self.index or not self.size else self.epoch_before)

    @property
    def has_more(self):
        """Whether there are records that were not handed out."""
        return self.index < self.size

    def __iter__(self):
        return self

    def __next__(self):
        if self.index >= self.size:
            raise StopIteration
        record = <object> PyList_GET_ITEM(self.records, self.index)
        self.index += 1
        return record

    def batch(self):
        """Return all records at once, before any was taken."""
        batch = self.records
        batch.topic, batch.partition = self.partition
        batch.begin, batch.end, batch.leader_epoch = self.begin, self.end, self.epoch
        batch._source, batch._offsets, batch._count = self.source, self.offsets, self.size
        self.index = self.size
        return batch

    def end_iteration(self):
        """Let it give no more records."""
        self.index = self.size

    def stop(self):
        """End the iteration; return what has the position where it ended, and no records."""
        cdef Records found
        if self.index >= self.size:
            self.records = self.offsets = None
            self.index = self.size = 0
            self.begin, self.epoch_before = self.end, self.epoch
            return self
        found = self.at(self.index)
        self.index = self.size
        return found

    def part(self, int64_t offset, Py_ssize_t most):
        """Return the records from `offset` on, at most `most`; they are to be handed out again, as if none was."""
        cdef Py_ssize_t first = offset - self.begin if self.offsets is None else _bisect_left(self.offsets, offset)
        cdef Py_ssize_t following = min(self.size, first + most)
        cdef Records found = self.at(first)
        found.begin = offset
        found.records = new_batch(list.__getitem__(self.records, slice(first, following)))
        found.size = following - first
        found.end, found.epoch = self.offset_of(following), self.epoch
        found.offsets = None if self.offsets is None else self.offsets[first:following]
        return found


cdef object new_batch(records=()):
    """Return a Batch without its fields."""
    batch = list.__new__(_Batch)
    list.extend(batch, records)
    return batch
