# Messages of confluent_kafka, as a consumer receives them: most follow one another in a partition.

cdef enum:
    MOST_BYTES = 1 << 30  # one record may be that large


cdef extern from *:
    """
    /* The C function of a method without arguments; NULL if the method is another thing. */
    static PyCFunction klamm_c_function(PyObject *method) {
        PyMethodDef *about = Py_IS_TYPE(method, &PyMethodDescr_Type) ? ((PyMethodDescrObject *) method)->d_method : NULL;
        return about != NULL && about->ml_flags == METH_NOARGS ? about->ml_meth : NULL;
    }

    static inline PyObject *klamm_call_method(PyObject *method, PyCFunction function, PyObject *object) {
        return function != NULL ? function(object, NULL) : PyObject_CallOneArg(method, object);
    }
    """
    ctypedef struct PyCFunction:
        pass

    PyCFunction klamm_c_function(object method) noexcept
    object klamm_call_method(object method, PyCFunction function, object object)


@cython.final
@cython.internal
cdef class Getter:
    """A method of a class of messages. Eight are called for each message, so that a call through the interpreter would
    take longer than all else.
    """

    cdef object method
    cdef PyCFunction function

    cdef inline of(self, message):
        return klamm_call_method(self.method, self.function, message)


cdef Getter getter_of(kind, str name):
    cdef Getter getter = Getter.__new__(Getter)
    getter.method = getattr(kind, name)
    getter.function = klamm_c_function(getter.method)
    return getter


@cython.final
@cython.internal
cdef class MessageMethods:
    """The methods of a class of messages, looked up once."""

    cdef object kind
    cdef Getter topic, partition, error, offset, timestamp, key, value, headers, leader_epoch

    cdef int look_up(self, kind) except -1:
        self.topic, self.partition, self.error = [getter_of(kind, each) for each in ("topic", "partition", "error")]
        self.offset, self.timestamp = getter_of(kind, "offset"), getter_of(kind, "timestamp")
        self.key, self.value = getter_of(kind, "key"), getter_of(kind, "value")
        self.headers, self.leader_epoch = getter_of(kind, "headers"), getter_of(kind, "leader_epoch")
        self.kind = kind
        return 0

    cdef Record record(self, message, str topic, int32_t partition):
        cdef Record record = Record.__new__(Record)
        record.topic = topic
        record.partition = partition
        record.offset = self.offset.of(message)
        record.timestamp = (<tuple> self.timestamp.of(message))[1]
        record.key = self.key.of(message)
        record.value = self.value.of(message)
        headers = self.headers.of(message)
        record.headers = no_headers if headers is None else headers_of(tuple(headers))
        epoch = self.leader_epoch.of(message)
        record.leader_epoch = -1 if epoch is None else epoch
        return record


def records_of(list messages not None):
    """Return them as runs of one partition, in the order of their offsets: [(topic, partition, records)]. A message
    that tells of an error is a run of its own, which has the message in place of the list.
    """
    cdef list runs = []
    cdef list records = None
    cdef str topic = None
    cdef int32_t partition = -1
    cdef int64_t last = -1
    cdef Record record
    cdef MessageMethods methods = MessageMethods.__new__(MessageMethods)
    for message in messages:
        if type(message) is not methods.kind:
            methods.look_up(type(message))
        name, number = methods.topic.of(message), methods.partition.of(message)
        if methods.error.of(message) is not None:
            runs.append((name, number, message))
            records = None
            continue
        record = methods.record(message, name, number)
        # librdkafka may read a part again, after the leader of a partition has changed.
        if records is None or <int32_t> number != partition or <str> name != topic or record.offset <= last:
            topic, partition, records = name, number, []
            runs.append((topic, partition, records))
        else:
            record.topic = topic
        last = record.offset
        records.append(record)
    return runs


def batches_of(list records not None, Py_ssize_t size):
    """Return records of one partition, in the order of their offsets, as batches in which offsets lie in a row: a batch
    that has `size` bytes takes no more.
    """
    cdef list batches = []
    cdef Builder builder = Builder(MOST_BYTES)
    cdef Record record
    cdef tuple headers
    cdef int64_t base = 0
    for record in records:
        if builder.count and (record.offset != base + builder.count or builder.used >= size):
            batches.append(batch_at(builder, base))
        if not builder.count:
            base = record.offset
        headers = record.headers.pairs
        if builder.put_objects(record.key, record.value, headers or None, record.timestamp, MOST_BYTES) < 0:
            raise AssertionError(f"{record.where()}: does not fit a batch of {MOST_BYTES} bytes")
    if builder.count:
        batches.append(batch_at(builder, base))
    return batches


cdef object batch_at(Builder builder, int64_t base):
    """Return the batch, with that base offset; the builder is empty then."""
    cdef object data = bytearray(builder.seal())
    klamm_put64(<uint8_t *> PyByteArray_AS_STRING(data), <uint64_t> base)
    builder.clear()
    return PyMemoryView_FromObject(data)
