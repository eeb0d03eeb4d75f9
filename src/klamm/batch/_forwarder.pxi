# Behind a producer of a cluster: librdkafka takes each record at once, and reports what became of it.
#
# That report is a call of Python for each record, which costs more than all else: what is called is the record's own
# object, and no function is made.


@cython.final
cdef class DeliveryReports:
    """What the records of one producer of librdkafka share.

        outstanding   records that were forwarded and not reported, or whose callbacks run
        held          in a transaction: (delivery, offset, the servers' time) of what arrived; None: each is resolved
        fail          called with the delivery of a record that failed, and the KafkaError
    """

    cdef readonly Py_ssize_t outstanding
    cdef public list held
    cdef bint knows_offsets
    cdef object fail
    cdef set calling                    # the threads that call callbacks of users

    def __init__(self, fail, *, bint knows_offsets):
        self.fail = fail
        self.knows_offsets = knows_offsets
        self.calling = set()

    @property
    def is_calling(self):
        """Whether the caller is a callback of a delivery."""
        return _get_ident() in self.calling


@cython.final
cdef class ReportedDelivery(BatchDelivery):
    """What became of one record: librdkafka's `on_delivery`, called once."""

    cdef DeliveryReports reports
    cdef bint is_stamped  # its time is the servers'

    def __call__(self, error, message):
        cdef PyObject *kind = NULL
        cdef PyObject *raised = NULL
        cdef PyObject *trace = NULL
        if self.reports is None:
            raise RuntimeError("a delivery is reported once")
        if PyErr_Occurred() == NULL:
            self.report(error, message)
            return
        PyErr_Fetch(&kind, &raised, &trace)  # a fatal error, which confluent_kafka raises when all callbacks were called
        try:
            self.report(error, message)
        finally:
            PyErr_Restore(kind, raised, trace)

    cdef int report(self, error, message) except -1:
        cdef int64_t offset = -1
        cdef int64_t stamp = -1
        cdef DeliveryReports reports = self.reports
        thread = None
        try:
            if error is not None or self.callbacks is not None:
                thread = _get_ident()
                reports.calling.add(thread)
            if error is not None:
                reports.fail(self, error)
                return 0
            if reports.knows_offsets:
                known = message.offset()
                if known is not None:  # else it was sent again, and the new leader knew only that it had it
                    offset = known
            if self.is_stamped:
                stamp = message.timestamp()[1]
            if reports.held is None:
                self.resolve(offset, stamp)
            else:
                reports.held.append((self, offset, stamp))
        finally:
            reports.outstanding -= 1
            self.reports = None  # of which a Delivery that the user keeps has no need
            if thread is not None:
                reports.calling.discard(thread)
        return 0


@cython.final
cdef class RecordForwarder(RecordSink):
    """One topic of a producer of librdkafka. Records with a key go by murmur2, as in a directory; `sticky_bytes` of
    others go to one partition, then it is the next one's turn.

        produce(topic, value, key, partition, on_delivery, None, time[, headers])
                              confluent_kafka's
        look_up(forwarder)    called first, and again when the topic may have changed: it calls `describe`
        wait(topic, error, size, since)
                              called when `produce` has raised: returns when it is worth another try, or raises.
                              `since`: time.monotonic() of the first try
    """

    cdef DeliveryReports reports
    cdef object produce
    cdef object look_up
    cdef object wait
    cdef double known_until
    cdef bint is_stamped
    cdef Py_ssize_t sticky_bytes
    cdef Py_ssize_t space       # bytes that may still go to the sticky partition
    cdef int32_t sticky

    def __init__(self, str topic not None, DeliveryReports reports not None, produce, look_up, wait,
                 partitioner=None, key_serializer=None, value_serializer=None, *, int64_t first=0,
                 Py_ssize_t sticky_bytes=1):
        RecordSink.__init__(self, topic, 1, partitioner, key_serializer, value_serializer)
        self.reports = reports
        self.produce = produce
        self.look_up = look_up
        self.wait = wait
        self.sticky_bytes = sticky_bytes
        look_up(self)
        self.sticky = <int32_t> (first % self.partitions)

    def describe(self, int32_t partitions, *, bint keyed, bint is_stamped, double valid_s):
        """Set what is known of the topic, for so long."""
        if partitions < 1:
            raise ValueError(f"{partitions} partitions")
        self.partitions = partitions
        self.keyed = keyed
        self.is_stamped = is_stamped
        self.known_until = klamm_monotonic() + valid_s

    cdef int32_t next_sticky(self, bytes value) noexcept:
        if self.space <= 0 or self.sticky >= self.partitions:
            self.sticky = (self.sticky + 1) % self.partitions
            self.space = self.sticky_bytes
        self.space -= 64 + (0 if value is None else PyBytes_GET_SIZE(value))
        return self.sticky

    cdef Delivery take_record(self, key, value, headers, timestamp, partition):
        cdef int32_t chosen = -1
        cdef int64_t time
        cdef double since = 0
        cdef bytes key_bytes, value_bytes
        cdef ReportedDelivery report
        cdef Delivery delivery
        if klamm_monotonic() > self.known_until:
            self.look_up(self)
        if partition is not None:
            chosen = self.given_partition(partition)
        if self.calls_users:
            key, value, chosen = self.call_users(key, value, chosen)
        key_bytes, value_bytes = as_bytes(key, "key"), as_bytes(value, "value")
        pairs = None if headers is None else header_pairs(headers)
        time = self.now_ms() if timestamp is None else self.time_of(timestamp)
        if key_bytes is None:
            if self.keyed:
                raise self.keyless()
            if chosen < 0:
                chosen = self.next_sticky(value_bytes)
        elif chosen < 0:
            chosen = (klamm_murmur2(<const uint8_t *> PyBytes_AS_STRING(key_bytes), PyBytes_GET_SIZE(key_bytes))
                      & 0x7fffffff) % <uint32_t> self.partitions
        report = ReportedDelivery.__new__(ReportedDelivery)
        report.topic = self.topic
        report.partition = chosen
        report.base_offset = report.log_append_time = -1
        report.reports = self.reports
        report.is_stamped = self.is_stamped
        delivery = Delivery.__new__(Delivery)
        delivery.batch = report
        delivery.sent_timestamp = time
        while not self.closed:
            self.reports.outstanding += 1
            try:
                if pairs is None:
                    self.produce(self.topic, value_bytes, key_bytes, chosen, report, None, time)
                else:
                    self.produce(self.topic, value_bytes, key_bytes, chosen, report, None, time, pairs)
                return delivery
            except Exception as error:
                self.reports.outstanding -= 1
                since = since or klamm_monotonic()
                self.wait(self.topic, error, len(value_bytes or b"") + len(key_bytes or b""), since)
        return None


cdef bytes as_bytes(given, str what):
    """Return the bytes of a key or a value, or None."""
    cdef Slice taken
    if given is None or type(given) is bytes:
        return <bytes> given
    take(given, &taken, what)
    try:
        return PyBytes_FromStringAndSize(<const char *> taken.data, taken.size)
    finally:
        give_back(&taken)
