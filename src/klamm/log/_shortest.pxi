"""The shortest way of an append: one record, committed, by the name of its topic, in one native call.

Of the options of `append` most calls give one or two. A Python function looks up the default of each of the others in a
dict, which with the rest of its frame takes as long as a quarter of the append. A native one has its defaults in C.
"""

cdef class QuickTarget:
    """What the shortest way has to know of a topic. The rest is known to client/produce/target.py."""
    cdef public Log quick               # of its only partition; None: its records do not go this way
    cdef public uint64_t version        # of the catalog, as of which the topic is known


cdef class QuickStore:
    """What the shortest way has to know of a store: the topics that it has appended to, as Targets."""
    cdef public dict _targets


cdef object append_quickly(QuickStore store, topic, key, value):
    """Append to a topic that the store has appended to before. None: it has not, or that needs the general way."""
    cdef QuickTarget target = store._targets.get(topic)
    cdef Log log
    cdef int64_t result
    if target is None:
        return None
    log = target.quick
    if log is None:
        return None
    result = log.append_at_version(key, value, target.version)
    return result if result >= 0 else (<object>store)._after_quick(target, result, topic, key, value)


cdef bint is_plain(acks, partition, headers, timestamp, serde, key_serde) except -1:
    """Return whether only a key and acks=1 are given. True is not taken for 1: the general way refuses it."""
    return (headers is None and timestamp is None and partition is None and serde is None and key_serde is None
            and acks is not True and acks == 1)


def store_goes_shortest_way(general):
    """Wrap Store.append: `general` is called for what cannot go the shortest way."""
    def append(self, topic, value, *, key=None, partition=None, headers=None, timestamp=None, acks="all", serde=None,
               key_serde=None):
        if is_plain(acks, partition, headers, timestamp, serde, key_serde):
            offset = append_quickly(<QuickStore?>self, topic, key, value)
            if offset is not None:
                return offset
        return general(self, topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp, acks=acks,
                       serde=serde, key_serde=key_serde)
    return update_wrapper(append, general)


def topic_goes_shortest_way(general):
    """Wrap Topic.append: like that of its store."""
    def append(self, value, *, key=None, partition=None, headers=None, timestamp=None, acks="all", serde=None,
               key_serde=None):
        if is_plain(acks, partition, headers, timestamp, serde, key_serde):
            offset = append_quickly(<QuickStore?>self._store, self._name, key, value)
            if offset is not None:
                return offset
        return general(self, value, key=key, partition=partition, headers=headers, timestamp=timestamp, acks=acks,
                       serde=serde, key_serde=key_serde)
    return update_wrapper(append, general)
