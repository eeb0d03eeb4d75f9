# A record as it was read, and its headers.

cdef object _EPOCH = _datetime(1970, 1, 1, tzinfo=_UTC)


@cython.final
@cython.no_gc  # pairs of text and bytes hold nothing else
@cython.freelist(64)
cdef class Headers:
    """The headers of a record: (name, value) pairs in order, in which a name may come more than once.

        headers["trace"]           the last value of that name, as Kafka's lastHeader; KeyError if there is none
        headers.get("trace")       the same, or None, or another default
        headers.get_all("trace")   all values of that name, in order
        "trace" in headers         whether there is one
        dict(headers)              the last value of each name
        for name, value in headers

    Values are bytes, or None for a null. Equal to a tuple of such pairs.
    """

    cdef tuple pairs

    def __init__(self, headers=()):
        self.pairs = tuple([(name, value) for name, value in
                            (headers.items() if isinstance(headers, _Mapping) else headers)])

    def __getitem__(self, name):
        for pair in reversed(self.pairs):
            if pair[0] == name:
                return pair[1]
        raise KeyError(name)

    def get(self, name, default=None):
        """Return the last value of that name, or `default`."""
        for pair in reversed(self.pairs):
            if pair[0] == name:
                return pair[1]
        return default

    def get_all(self, name):
        """Return all values of that name, in order."""
        return [pair[1] for pair in self.pairs if pair[0] == name]

    def __contains__(self, name):
        for pair in self.pairs:
            if pair[0] == name:
                return True
        return False

    def __iter__(self):
        return iter(self.pairs)

    def __len__(self):
        return len(self.pairs)

    def __eq__(self, other):
        if isinstance(other, Headers):
            return self.pairs == (<Headers> other).pairs
        return self.pairs == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self):
        return hash(self.pairs)

    def __repr__(self):
        return repr(self.pairs)

    def __reduce__(self):
        return Headers, (self.pairs,)


cdef Headers headers_of(tuple pairs):
    cdef Headers headers = Headers.__new__(Headers)
    headers.pairs = pairs
    return headers


cdef Headers no_headers = headers_of(())


@cython.final
@cython.no_gc  # a reference cycle needs a value that is made to hold its own Record
@cython.freelist(512)
cdef class Record:
    """One record as it was read. Key and value are bytes, or what the consumer's serde made of them."""

    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object key
    cdef readonly object value
    cdef readonly Headers headers

    def __init__(self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp, key, value,
                 headers=(), int32_t leader_epoch=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers if isinstance(headers, Headers) else Headers(headers)
        self.leader_epoch = leader_epoch

    @classmethod
    def __class_getitem__(cls, types):
        """Return the class: `Record[str, Order]`, in annotations, names the types of key and value."""
        return _GenericAlias(cls, types)

    def __getattr__(self, name):
        raise _unknown_attribute(self, name)

    def json(self):
        """Return the value parsed as JSON; None for a null. Raise TypeError if a serde has decoded the value."""
        if self.value is None:
            return None
        if not isinstance(self.value, bytes):
            raise TypeError(f"{self.where()}: value is {type(self.value).__name__}, made by the consumer's serde:"
                            " record.json() reads bytes (use record.value)")
        try:
            return _parse_json(self.value)
        except ValueError as error:
            error.add_note(f"{self.where()}: the value is not JSON")
            raise

    @property
    def text(self):
        """The value as text, from UTF-8; None for a null. TypeError if a serde has made something else of it."""
        if self.value is None or isinstance(self.value, str):
            return self.value
        if not isinstance(self.value, bytes):
            raise TypeError(f"{self.where()}: value is {type(self.value).__name__}, made by the consumer's serde:"
                            " record.text reads bytes (use record.value)")
        try:
            return (<bytes> self.value).decode()
        except UnicodeDecodeError as error:
            error.add_note(f"{self.where()}: the value is not UTF-8")
            raise

    @property
    def datetime(self):
        """The timestamp as a datetime, in UTC."""
        return _EPOCH + _timedelta(milliseconds=self.timestamp)

    cdef str where(self):
        return f"{self.topic}/{self.partition}, offset {self.offset}"

    def __repr__(self):
        headers = f", headers={self.headers!r}" if self.headers else ""
        return (f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}{headers})")

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self.__reduce__()[1] == other.__reduce__()[1]

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self):
        return Record, (self.topic, self.partition, self.offset, self.timestamp, self.key, self.value, self.headers,
                        self.leader_epoch)
