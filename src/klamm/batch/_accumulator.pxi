# Behind producer.send: the partition, the batch and the Delivery of each record of a topic.
#
#     RecordSink             takes the records of one topic: partition, serializers, checks
#     ├── RecordAccumulator  into batches, for a directory
#     └── RecordForwarder    to librdkafka, for a cluster (_forwarder.pxi)

cdef enum:
    MAX_POOLED = 16  # Builders kept for the next batches

_log = _get_logger("klamm")


cdef object call_back(call, Delivery delivery):
    """Call a user's callback. Log its exception; return an interrupt, because the other callbacks come first."""
    try:
        call(delivery)
    except Exception:  # as concurrent.futures does: there is no caller to raise it to
        _log.exception("a callback of a delivery to %s raised", delivery.batch.topic)
    except BaseException as interrupt:
        return interrupt


cdef object apart(error):
    """Return a copy. What is raised refers to the frames that it went through; these may have the delivery, which refers
    to its error, and which no garbage collector looks into.
    """
    try:
        copied = _copy(error)
    except Exception:  # of a class that cannot be copied
        return error
    copied.__cause__, copied.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copied


cdef class BatchDelivery:
    """What became of one batch. The committing thread calls `resolve` or `fail`, once; later calls change nothing.

    Each of its callbacks is called, whatever the others raise.
    """

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly bint done
    cdef readonly int64_t base_offset   # -1: not known
    cdef readonly int64_t log_append_time  # -1: records keep their own timestamps
    cdef readonly object error
    cdef object lock                    # created by the first waiting thread, and held until the batch is done
    cdef object calling                 # created with the first callback, and held until all were called; then None
    cdef list callbacks
    cdef bint released

    def __init__(self, str topic not None, int32_t partition):
        self.topic = topic
        self.partition = partition
        self.base_offset = -1
        self.log_append_time = -1

    def release(self, BufferMemory memory not None, Py_ssize_t size):
        """Subtract the batch's bytes from the producer's buffer memory, once; later calls change nothing."""
        if not self.released:
            self.released = True
            memory.used -= size

    def resolve(self, int64_t base_offset, int64_t log_append_time=-1):
        """Report that the batch is committed at `base_offset`; -1 with acks=0."""
        if not self.done:
            self.base_offset = base_offset
            self.log_append_time = log_append_time
            self.finish()

    def fail(self, error):
        if not isinstance(error, BaseException):
            raise TypeError(f"error is {type(error).__name__}, expected an exception")
        if not self.done:
            self.error = apart(error)
            self.finish()

    cdef object finish(self):
        cdef list callbacks
        self.done = True
        callbacks, self.callbacks = self.callbacks, None
        if self.lock is not None:
            self.lock.release()
        interrupt = None
        if callbacks is not None:
            for call, delivery in callbacks:
                interrupt = call_back(call, delivery) or interrupt
            calling, self.calling = self.calling, None
            calling.release()
        if interrupt is not None:
            raise interrupt

    @property
    def is_calling(self):
        """Whether it is done, and a thread calls its callbacks."""
        return self.done and self.calling is not None

    def wait_for_callbacks(self, timeout=None):
        """Wait until its callbacks were called, for at most `timeout` seconds. Return whether they were."""
        calling = self.calling
        if calling is None:
            return True
        if not calling.acquire(True, -1 if timeout is None else max(timeout, 0)):
            return False
        calling.release()
        return True

    def wait(self, timeout=None):
        """Wait until the batch is done, for at most `timeout` seconds. Return whether it is."""
        if self.done:
            return True
        if self.lock is None:           # not an Event, whose Python code an interrupt may leave with its lock held
            lock = _allocate_lock()
            lock.acquire()
            if self.done:
                return True
            if self.lock is None:       # no other thread came in between
                self.lock = lock
        if not self.lock.acquire(True, -1 if timeout is None else max(timeout, 0)):
            return False
        self.lock.release()
        return True


@cython.final
@cython.no_gc  # refers to its batch only, and that only to callbacks of deliveries that are not done
@cython.freelist(1024)
cdef class Delivery:
    """What became of one record that was sent."""

    cdef BatchDelivery batch
    cdef int32_t index
    cdef int64_t sent_timestamp

    def __init__(self, BatchDelivery batch not None, int32_t index, int64_t timestamp=-1):
        self.batch = batch
        self.index = index
        self.sent_timestamp = timestamp

    @property
    def topic(self):
        return self.batch.topic

    def __getattr__(self, name):
        raise _unknown_attribute(self, name)

    @property
    def partition(self):
        return self.batch.partition

    @property
    def done(self):
        return self.batch.done

    @property
    def error(self):
        return self.batch.error

    @property
    def offset(self):
        """None until it is done, after an error, and with acks=0."""
        return self.batch.base_offset + self.index if self.batch.base_offset >= 0 else None

    @property
    def timestamp(self):
        return self.sent_timestamp if self.batch.log_append_time < 0 else self.batch.log_append_time

    def result(self, timeout=None):
        """Wait until the record's batch is committed, and return the record's offset. Raise the error of the batch if
        it failed.

        TimeoutError after `timeout`, in seconds or as a timedelta.
        """
        if timeout is not None:
            timeout = _to_timeout("timeout", timeout)
        if not self.batch.wait(timeout):
            raise TimeoutError(f"no result for a record of topic {self.batch.topic!r} within {timeout:g} s")
        if self.batch.error is not None:
            raise apart(self.batch.error)
        return self.offset

    def add_done_callback(self, call):
        """Call call(delivery) when it is done: at once, or in the thread that commits the batch.

        An exception that it raises is logged.
        """
        cdef list callbacks = None
        calling = None
        entry = (call, self)
        if self.batch.callbacks is None:  # allocated before the look at `done`: an allocation may run another thread
            callbacks = []
            calling = _allocate_lock()
            calling.acquire()
        if self.batch.done:
            interrupt = call_back(call, self)
            if interrupt is not None:
                raise interrupt
            return
        if self.batch.callbacks is None:
            self.batch.callbacks = callbacks
            self.batch.calling = calling
        self.batch.callbacks.append(entry)

    def __repr__(self):
        state = "pending" if not self.batch.done else repr(self.batch.error) if self.batch.error is not None \
            else f"offset {self.offset}"
        return f"<Delivery {self.batch.topic}[{self.batch.partition}] {state}>"


cdef class OpenBatch:
    """The batch that a partition's next records go to."""

    cdef Builder builder
    cdef BatchDelivery delivery
    cdef double since  # when its first record came


@cython.final
cdef class BufferMemory:
    """The bytes of a producer's records that are not delivered, in open and in full batches."""

    cdef readonly Py_ssize_t limit
    cdef readonly Py_ssize_t used

    def __init__(self, Py_ssize_t limit):
        self.limit = limit

    @property
    def is_full(self):
        return self.used > self.limit


cdef class RecordSink:
    """One topic of a producer: takes its records. `add` chooses the partition, and checks what the user gave.

    `clock` has two words for a buffer: how far what is now is ahead of the wall clock. Where an unkeyed record goes,
    and what becomes of each, is told by the two classes that there are of it.
    """

    cdef readonly str topic
    cdef readonly int32_t partitions
    cdef readonly bint closed           # takes no record
    cdef readonly int32_t sending       # `send`s that have this sink, and run a serializer
    cdef readonly list full             # batches that are closed: (partition, Builder, BatchDelivery)
    cdef bint calls_users               # it has serializers, or a partitioner
    cdef object partitioner
    cdef object key_serializer
    cdef object value_serializer
    cdef bint keyed                     # the topic is compacted: it takes no record without a key
    cdef Py_buffer clock                # how far the clock is ahead of ours, in ms, and ~that
    cdef int64_t before_ms              # timestamps may lie so far in the past,
    cdef int64_t after_ms               # and so far in the future

    def __dealloc__(self):
        if self.clock.buf != NULL:
            PyBuffer_Release(&self.clock)

    def __init__(self, str topic not None, int32_t partitions, partitioner=None, key_serializer=None,
                 value_serializer=None, *, bint keyed=False, clock=None, int64_t before_ms=INT64_MAX,
                 int64_t after_ms=INT64_MAX):
        if partitions < 1:
            raise ValueError(f"{partitions} partitions")
        self.topic = topic
        self.partitions = partitions
        self.full = []
        self.partitioner = partitioner
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self.calls_users = partitioner is not None or key_serializer is not None or value_serializer is not None
        self.keyed = keyed
        self.before_ms = before_ms
        self.after_ms = after_ms
        if clock is not None:
            PyObject_GetBuffer(clock, &self.clock, PyBUF_SIMPLE)

    cdef int64_t now_ms(self) noexcept:
        cdef const int64_t *words = <const int64_t *> self.clock.buf
        return klamm_now_ms() + (words[0] if words != NULL and words[1] == ~words[0] else 0)

    cdef int64_t time_of(self, timestamp) except? -1:
        """Return the time of a record: `timestamp`, or the current time if that is -1."""
        cdef int64_t time = timestamp
        cdef int64_t now = self.now_ms()
        if time == -1:
            return now
        time = checked_timestamp(time)
        if time - now > self.after_ms or now - time > self.before_ms:
            raise InvalidTimestamp.outside(self.topic, time, now - self.before_ms, <object> now + self.after_ms)
        return time

    cdef int32_t given_partition(self, partition) except -1:
        cdef int64_t number = partition
        if not 0 <= number < self.partitions:
            raise UnknownTopic(f"topic {self.topic!r} has no partition {number}", hint=f"it has {self.partitions}")
        return <int32_t> number

    cdef object keyless(self):
        return InvalidRecord(f"{self.topic}: a record without a key, and the topic is compacted",
                             hint="give it a key: compaction keeps the latest record of each")

    def add(self, key, value, headers=None, timestamp=None, partition=None):
        """Add one record. Batches that this closed are in `full`. Return None if it is closed: nothing was added.

        A serializer is not called for None; `timestamp` None or -1 is now. After RecordTooLarge, InvalidRecord,
        InvalidTimestamp, UnknownTopic (no such partition), TypeError or ValueError, nothing was taken.
        """
        return self.take_record(key, value, headers, timestamp, partition)

    cdef Delivery take_record(self, key, value, headers, timestamp, partition):
        raise NotImplementedError

    cdef tuple call_users(self, key, value, int32_t chosen):
        """Call the serializers and, unless a partition is given, the partitioner. Return key, value and partition."""
        self.sending += 1
        try:
            if key is not None and self.key_serializer is not None:
                key = self.key_serializer(key)
            if value is not None and self.value_serializer is not None:
                value = self.value_serializer(value)
            if chosen < 0 and self.partitioner is not None:
                chosen = checked_partition(self.partitioner(key, self.partitions), self.partitions)
            return key, value, chosen
        finally:
            self.sending -= 1

    def close(self):
        """Refuse further records; `drain` still returns the ones that were taken."""
        self.closed = True

    def open(self):
        """Take records again."""
        self.closed = False


@cython.final
cdef class RecordAccumulator(RecordSink):
    """One topic of a producer: picks each record's partition and adds the record to that partition's open batch.

    A batch is closed when it reaches `batch_bytes` or the next record does not fit; a larger record, up to `limit`,
    gets a batch of its own. Records with a key go by murmur2, others stick to one partition until its batch is closed
    and then go on to the next (`first` is where they start); `partitioner` replaces both.
    What a record takes is added to `memory`; the owner of the batch releases it.

    The GIL is its lock: to other threads, every method is one step, after the user's serializers and partitioner ran.
    (An allocation may collect garbage, and a finalizer may run other threads: nothing read before one is trusted
    after.) A closed accumulator takes no record. It is looked at in that one step, so what was taken is there for the
    `drain` that follows `close`, and a `send` that comes too late knows.
    """

    cdef readonly Py_ssize_t batch_bytes
    cdef readonly Py_ssize_t limit
    cdef readonly Py_ssize_t bytes      # in batches that are still open
    cdef int32_t sticky                 # where records without a key go now
    cdef list open_batches              # OpenBatch or None of each partition
    cdef list pool
    cdef BufferMemory memory

    def __init__(self, str topic not None, int32_t partitions, Py_ssize_t batch_bytes, Py_ssize_t limit,
                 partitioner=None, key_serializer=None, value_serializer=None, *, int64_t first=0,
                 BufferMemory memory=None, **options):
        RecordSink.__init__(self, topic, partitions, partitioner, key_serializer, value_serializer, **options)
        if batch_bytes < 1 or limit < 1:
            raise ValueError(f"batches of {batch_bytes} bytes, at most {limit}")
        self.batch_bytes = min(batch_bytes, limit)
        self.limit = limit
        self.sticky = <int32_t> (first % partitions)
        self.open_batches = [None] * partitions
        self.pool = []
        self.memory = memory

    cdef OpenBatch opened(self, int32_t partition):
        """Open a batch for the partition, unless another thread has done so when this one is made."""
        cdef OpenBatch fresh = OpenBatch.__new__(OpenBatch)
        fresh.builder = self.pool.pop() if self.pool else Builder(self.limit)
        fresh.delivery = BatchDelivery(self.topic, partition)
        if self.open_batches[partition] is None:
            self.open_batches[partition] = fresh
        return <OpenBatch> self.open_batches[partition]

    cdef int close_batch(self, int32_t partition, OpenBatch batch) except -1:
        entry = (partition, batch.builder, batch.delivery)
        if self.open_batches[partition] is not batch:  # another thread has closed it since
            return 0
        self.full.append(entry)
        self.open_batches[partition] = None
        self.bytes -= batch.builder.used
        if partition == self.sticky:
            self.sticky = (partition + 1) % self.partitions
        return 0

    cdef Delivery take_record(self, key, value, headers, timestamp, partition):
        cdef Slice k
        cdef Slice v
        cdef int32_t chosen = -1
        cdef int64_t time
        cdef bytes encoded = None
        if partition is not None:
            chosen = self.given_partition(partition)
        if self.calls_users:
            key, value, chosen = self.call_users(key, value, chosen)
        if headers is not None:
            encoded = encode_headers(headers)
        time = self.now_ms() if timestamp is None else self.time_of(timestamp)
        take(key, &k, "key")
        try:
            take(value, &v, "value")
        except:
            give_back(&k)
            raise
        try:
            if k.size < 0:
                if self.keyed:
                    raise self.keyless()
            elif chosen < 0:
                chosen = (klamm_murmur2(k.data, k.size) & 0x7fffffff) % <uint32_t> self.partitions
            return self.put_encoded(&k, &v, encoded, time, chosen)
        finally:
            give_back(&k)
            give_back(&v)

    cdef Delivery put_encoded(self, const Slice *k, const Slice *v, bytes encoded, int64_t time, int32_t chosen):
        """Add an encoded record to a partition. `chosen` -1: to the sticky one, which changes when a batch is closed.
        Return None if the accumulator is closed.
        """
        cdef const uint8_t *headers = NULL
        cdef Py_ssize_t headers_size = 1, before
        cdef int32_t partition
        cdef int64_t index
        cdef OpenBatch batch
        cdef Delivery delivery
        if encoded is not None:
            headers = <const uint8_t *> PyBytes_AS_STRING(encoded)
            headers_size = PyBytes_GET_SIZE(encoded)
        while True:
            partition = chosen if chosen >= 0 else self.sticky
            batch = <OpenBatch> self.open_batches[partition]
            if batch is None:
                batch = self.opened(partition)
            if self.closed:  # after everything that may run another thread
                return None
            before = batch.builder.used
            index = batch.builder.put(k.data, k.size, v.data, v.size, headers, headers_size, time,
                                      self.batch_bytes if batch.builder.count else self.limit)
            if index >= 0:
                break
            self.close_batch(partition, batch)
        if index == 0:
            batch.since = klamm_monotonic()
            before = 0
        self.bytes += batch.builder.used - before
        if self.memory is not None:
            self.memory.used += batch.builder.used - before
        delivery = Delivery.__new__(Delivery)
        delivery.batch = batch.delivery
        delivery.index = <int32_t> index
        delivery.sent_timestamp = time
        if batch.builder.used >= self.batch_bytes:
            self.close_batch(partition, batch)
        return delivery

    @property
    def oldest(self):
        """time.monotonic() of the oldest record in an open batch; infinity when there is none."""
        cdef double oldest = float("inf")
        cdef OpenBatch batch
        for batch in self.open_batches:
            if batch is not None and batch.builder.count and batch.since < oldest:
                oldest = batch.since
        return oldest

    def drain(self, double before=float("inf")):
        """Close the open batches whose first record came before that time (time.monotonic()); by default all."""
        cdef int32_t partition
        cdef OpenBatch batch
        for partition in range(self.partitions):
            batch = <OpenBatch> self.open_batches[partition]
            if batch is not None and batch.builder.count and batch.since < before:
                self.close_batch(partition, batch)

    def take_full(self):
        """Return the closed batches, which belong to the caller now."""
        full, self.full = self.full, []
        return full

    def recycle(self, Builder builder not None):
        """Take back a Builder that is not needed any more."""
        if len(self.pool) < MAX_POOLED and builder.limit == self.limit:
            builder.clear()
            self.pool.append(builder)


cdef class Sending:
    """What a producer calls for every record: the native half of Producer, which owns `_accumulators` and the methods
    below.

        _find_accumulator(topic)       the accumulator of a topic that is not in `_accumulators`, or is closed, or for
                                       which there is no room
        _ship(accumulator)             see to the batches in accumulator.full, and to a buffer that is full
        _milliseconds(when)     a timestamp that is not an int
        _too_large(topic, e)    what to raise for a record that fits no batch
    """

    cdef public dict _accumulators
    cdef public BufferMemory _memory  # None: without a limit

    @classmethod
    def __class_getitem__(cls, types):
        """Return the class: `Producer[str, Order]`, in annotations, names the types of keys and of values."""
        return _GenericAlias(cls, types)

    def send(self, topic, value, *, key=None, headers=None, timestamp=None, partition=None):
        """Take one record into a batch. The Delivery has its outcome.

        Raises what went wrong with an earlier batch, if that was not told yet; then this record was not taken.
        """
        cdef RecordSink accumulator
        cdef Delivery delivery
        if timestamp is not None and type(timestamp) is not int:
            timestamp = self._milliseconds(timestamp)
        while True:
            found = None
            if type(topic) is str and (self._memory is None or self._memory.used <= self._memory.limit):
                found = self._accumulators.get(topic)
            accumulator = <RecordSink?> (found if found is not None else self._find_accumulator(topic))
            try:
                delivery = accumulator.take_record(key, value, headers, timestamp, partition)
            except RecordTooLarge as error:
                raise self._too_large(topic, error) from None
            if delivery is not None:
                break
        if accumulator.full or (self._memory is not None and self._memory.used > self._memory.limit):
            self._ship(accumulator)
        return delivery
