# Messages of confluent_kafka, as a consumer receives them: most follow one another in a partition.


@cython.final
@cython.internal
cdef class MessageMethods:
    """The methods of a class of messages, looked up once: to do so for each message takes longer than to call them."""

    cdef object kind, topic, partition, error, offset, timestamp, key, value, headers, leader_epoch

    cdef int look_up(self, kind) except -1:
        self.kind, self.topic, self.partition, self.error = kind, kind.topic, kind.partition, kind.error
        self.offset, self.timestamp, self.headers = kind.offset, kind.timestamp, kind.headers
        self.key, self.value, self.leader_epoch = kind.key, kind.value, kind.leader_epoch
        return 0

    cdef Record record(self, message, str topic, int32_t partition):
        cdef Record record = Record.__new__(Record)
        record.topic = topic
        record.partition = partition
        record.offset = self.offset(message)
        record.timestamp = (<tuple> self.timestamp(message))[1]
        record.key = self.key(message)
        record.value = self.value(message)
        headers = self.headers(message)
        record.headers = no_headers if headers is None else headers_of(tuple(headers))
        epoch = self.leader_epoch(message)
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
        name, number = methods.topic(message), methods.partition(message)
        if methods.error(message) is not None:
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
