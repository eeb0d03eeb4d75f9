# Arrow columns -> a batch; and which rows or records go to which partition.

cdef enum:
    TABLE_DONE = 0
    TABLE_FULL = 1     # the batch would exceed its limit
    TABLE_ROOM = 2     # the memory has to grow first
    TABLE_NO_ROW = 3   # the selection names a row that is not there
    TABLE_ORDER = 4    # an offset that is not after the one before


@cython.final
cdef class BinaryColumn:
    """Arrow's binary (or string) layout: `rows` values from row `start` on. Offsets are checked here, once.

    `validity` is a bitmap or None, `offsets` are int32, or int64 when `large`.
    """

    cdef readonly int64_t rows
    cdef int64_t start
    cdef bint large
    cdef View bitmap
    cdef View offset_bytes
    cdef View data_bytes
    cdef const uint8_t *validity
    cdef const uint8_t *offsets
    cdef const uint8_t *data

    def __init__(self, int64_t rows, validity, offsets, data, *, int64_t start=0, bint large=False):
        cdef int64_t i, here, before = 0, size
        cdef bint wrong = False
        if rows < 0 or start < 0 or rows > INT64_MAX // 16 - start:
            raise ValueError(f"{rows} rows from {start} on")
        self.rows = rows
        self.start = start
        self.large = large
        if validity is not None and rows:
            self.bitmap = viewed(validity)
            self.validity = checked_bitmap(self.bitmap, start + rows)
        self.offset_bytes = viewed(offsets)
        if self.offset_bytes.size < (start + rows + 1) * (8 if large else 4) and rows:
            raise ValueError(f"{self.offset_bytes.size} bytes of offsets for {start + rows} rows")
        if data is not None:
            self.data_bytes = viewed(data)
            size = self.data_bytes.size
        else:
            size = 0
        if rows:
            self.offsets = self.offset_bytes.data
            self.data = self.data_bytes.data if size else NULL
            with nogil:
                for i in range(rows + 1):
                    here = self.offset_of(i)
                    if here < before or here > size:
                        wrong = True
                        break
                    before = here
            if wrong:
                raise ValueError(f"offset {here} of row {i} after {before}, in {size} bytes of data")

    cdef inline int64_t offset_of(self, int64_t row) noexcept nogil:
        if self.large:
            return (<const int64_t *> self.offsets)[self.start + row]
        return (<const int32_t *> self.offsets)[self.start + row]

    cdef inline int64_t at(self, int64_t row, const uint8_t **p) noexcept nogil:
        """Return the size of the value of a row, -1 for null, and point at it."""
        cdef int64_t here
        if self.validity != NULL and not is_set(self.validity, self.start + row):
            p[0] = NULL
            return -1
        here = self.offset_of(row)
        p[0] = self.data + here
        return self.offset_of(row + 1) - here


cdef inline bint is_set(const uint8_t *bitmap, int64_t row) noexcept nogil:
    return bitmap[row >> 3] >> (row & 7) & 1


cdef const uint8_t *checked_bitmap(View bitmap, int64_t rows) except NULL:
    if bitmap.size < (rows + 7) // 8:
        raise ValueError(f"{bitmap.size} bytes of validity for {rows} rows")
    return bitmap.data


@cython.final
cdef class NumberColumn:
    """Arrow's int64 layout, for timestamps and partitions: none is negative."""

    cdef readonly int64_t rows
    cdef int64_t start
    cdef View bitmap
    cdef View value_bytes
    cdef const uint8_t *validity
    cdef const int64_t *values

    def __init__(self, int64_t rows, validity, values, *, int64_t start=0):
        cdef int64_t i
        if rows < 0 or start < 0 or rows > INT64_MAX // 16 - start:
            raise ValueError(f"{rows} rows from {start} on")
        self.rows = rows
        self.start = start
        if validity is not None and rows:
            self.bitmap = viewed(validity)
            self.validity = checked_bitmap(self.bitmap, start + rows)
        self.value_bytes = viewed(values)
        if self.value_bytes.size < (start + rows) * 8:
            raise ValueError(f"{self.value_bytes.size} bytes of numbers for {start + rows} rows")
        if rows:
            self.values = <const int64_t *> self.value_bytes.data
            for i in range(start, start + rows):
                if self.values[i] < 0 and (self.validity == NULL or is_set(self.validity, i)):
                    raise ValueError(f"{self.values[i]} in row {i - start} is negative")

    cdef inline int64_t at(self, int64_t row, int64_t default) noexcept nogil:
        """Return the number, or `default` for null."""
        if self.validity != NULL and not is_set(self.validity, self.start + row):
            return default
        return self.values[self.start + row]


@cython.final
cdef class HeadersColumn:
    """Arrow's list<struct<key: string, value: binary>>: `starts` are int32, or int64 when `large`, and count in the
    rows of `names` and `values`. A null list is an empty one; a null name is an error."""

    cdef readonly int64_t rows
    cdef int64_t start
    cdef bint large
    cdef View bitmap
    cdef View start_bytes
    cdef const uint8_t *validity
    cdef const uint8_t *starts
    cdef BinaryColumn names
    cdef BinaryColumn values

    def __init__(self, int64_t rows, validity, starts, BinaryColumn names not None, BinaryColumn values not None, *,
                 int64_t start=0, bint large=False):
        cdef int64_t i, here, before = 0
        if rows < 0 or start < 0 or rows > INT64_MAX // 16 - start:
            raise ValueError(f"{rows} rows from {start} on")
        if names.rows != values.rows:
            raise ValueError(f"{names.rows} names for {values.rows} values")
        self.rows = rows
        self.start = start
        self.large = large
        self.names = names
        self.values = values
        if validity is not None and rows:
            self.bitmap = viewed(validity)
            self.validity = checked_bitmap(self.bitmap, start + rows)
        self.start_bytes = viewed(starts)
        if self.start_bytes.size < (start + rows + 1) * (8 if large else 4) and rows:
            raise ValueError(f"{self.start_bytes.size} bytes of offsets for {start + rows} rows")
        if rows:
            self.starts = self.start_bytes.data
            for i in range(rows + 1):
                here = self.start_of(i)
                if here < before or here > names.rows:
                    raise ValueError(f"offset {here} of row {i} after {before}, of {names.rows} headers")
                before = here
            if names.validity != NULL:
                for i in range(self.start_of(0), self.start_of(rows)):
                    if not is_set(names.validity, names.start + i):
                        raise ValueError("a header's name is null")

    cdef inline int64_t start_of(self, int64_t row) noexcept nogil:
        if self.large:
            return (<const int64_t *> self.starts)[self.start + row]
        return (<const int32_t *> self.starts)[self.start + row]

    cdef inline int64_t count(self, int64_t row) noexcept nogil:
        if self.validity != NULL and not is_set(self.validity, self.start + row):
            return 0
        return self.start_of(row + 1) - self.start_of(row)

    cdef int64_t size(self, int64_t row) noexcept nogil:
        """Return the size in bytes of a row's headers, their count included."""
        cdef int64_t n = self.count(row), first = self.start_of(row), total = klamm_varint_size(n), i, size
        cdef const uint8_t *p
        for i in range(first, first + n):
            size = self.names.at(i, &p)
            total += klamm_varint_size(size) + size
            size = self.values.at(i, &p)
            total += klamm_varint_size(size) + (size if size > 0 else 0)
        return total

    cdef uint8_t *put(self, uint8_t *to, int64_t row) noexcept nogil:
        cdef int64_t n = self.count(row), first = self.start_of(row), i, size
        cdef const uint8_t *p
        to = klamm_put_varint(to, n)
        for i in range(first, first + n):
            size = self.names.at(i, &p)
            to = klamm_put_varint(to, size)
            klamm_copy(to, p, size)
            to += size
            size = self.values.at(i, &p)
            to = klamm_put_varint(to, size)
            if size > 0:
                klamm_copy(to, p, size)
                to += size
        return to


cdef int put_rows(Builder b, int64_t *index, int64_t stop, const int32_t *selection, BinaryColumn key, bint has_key,
                  BinaryColumn value, NumberColumn timestamps, bint has_timestamps, HeadersColumn headers,
                  bint has_headers, NumberColumn offsets, bint has_offsets, int64_t base, int64_t now,
                  int64_t *need) noexcept nogil:
    cdef uint8_t *p = b.memory.data + b.used
    cdef uint8_t *full = b.memory.data + b.memory.capacity
    cdef uint8_t *most = b.memory.data + b.limit
    cdef const uint8_t *k = NULL
    cdef const uint8_t *v = NULL
    cdef int64_t i = index[0], row, key_size = -1, value_size, headers_size = 1, timestamp = now, delta, body
    cdef int64_t offset_delta
    cdef int code = TABLE_DONE
    while i < stop:
        row = selection[i] if selection != NULL else i
        if row < 0 or row >= value.rows:
            code = TABLE_NO_ROW
            break
        value_size = value.at(row, &v)
        if has_key:
            key_size = key.at(row, &k)
        if has_timestamps:
            timestamp = timestamps.at(row, now)
        if has_headers:
            headers_size = headers.size(row)
        offset_delta = b.count + b.skipped
        if has_offsets:
            if offsets.at(row, -1) - base < offset_delta:
                code = TABLE_ORDER
                break
            offset_delta = offsets.at(row, -1) - base
            if offset_delta >= INT32_MAX:
                code = TABLE_FULL
                need[0] = 0
                break
        delta = timestamp - b.first if b.count else 0
        body = klamm_body_size(delta, offset_delta, key_size, value_size, headers_size)
        need[0] = body + klamm_varint_size(body)
        if need[0] > full - p:
            code = TABLE_ROOM
            if need[0] > most - p:
                code = TABLE_FULL
                body = klamm_body_size(0, 0, key_size, value_size, headers_size)
                need[0] = body + klamm_varint_size(body)
            break
        p = klamm_put_record(p, body, delta, offset_delta, k, key_size, v, value_size)
        if has_headers:
            p = headers.put(p, row)
        else:
            p[0] = 0
            p += 1
        if b.count == 0:
            b.first = b.newest = timestamp
        elif timestamp > b.newest:
            b.newest = timestamp
        b.skipped = offset_delta - b.count
        b.count += 1
        i += 1
    index[0] = i
    b.used = p - b.memory.data
    return code


def encode_columns(Builder builder not None, int64_t start, int64_t stop, BinaryColumn value not None,
                   BinaryColumn key=None, NumberColumn timestamps=None, HeadersColumn headers=None, selection=None,
                   int64_t timestamp=-1, NumberColumn offsets=None, int64_t base_offset=0):
    """Add rows start ≤ i < stop of the columns, or the rows selection[i]. Return the first i that did not fit, or stop.

    With `offsets`, records get those in a batch that begins at `base_offset`, with gaps where there are some, as after
    a compaction; else they follow on. One that is more than 31 bits away does not fit.
    """
    cdef View chosen
    cdef const int32_t *rows = NULL
    cdef int64_t index = start, need = 0, now = checked_timestamp(timestamp), count = value.rows
    cdef bint has_key = key is not None, has_timestamps = timestamps is not None, has_headers = headers is not None
    cdef int code
    for column in (key, timestamps, headers, offsets):
        if column is not None and column.rows != count:
            raise ValueError(f"columns of {count} and {column.rows} rows")
    if selection is not None:
        chosen = viewed(selection)
        if not 0 <= start <= stop <= chosen.size // 4:
            raise IndexError(f"rows {start} to {stop} of {chosen.size // 4}")
        rows = <const int32_t *> chosen.data
    elif not 0 <= start <= stop <= count:
        raise IndexError(f"rows {start} to {stop} of {count}")
    if builder.busy:
        raise_busy()
    while index < stop:
        builder.busy = True
        with nogil:
            code = put_rows(builder, &index, stop, rows, key, has_key, value, timestamps, has_timestamps, headers,
                            has_headers, offsets, offsets is not None, base_offset, now, &need)
        builder.busy = False
        if code == TABLE_FULL:
            check_fits(need, builder.limit)
            break
        if code == TABLE_NO_ROW:
            raise IndexError(f"row {rows[index]} of {count}")
        if code == TABLE_ORDER:
            raise ValueError(f"row {index}: its offset does not follow on those before it")
        if code == TABLE_ROOM:
            builder.make_room(need)
    return index


def too_large(BinaryColumn value not None, BinaryColumn key=None, HeadersColumn headers=None, *, int64_t limit):
    """Return the first row that no batch of `limit` bytes can hold, or -1."""
    cdef int64_t row, body, key_size = -1, headers_size = 1, found = -1
    cdef const uint8_t *p
    cdef bint has_key = key is not None, has_headers = headers is not None
    for column in (key, headers):
        if column is not None and column.rows != value.rows:
            raise ValueError(f"columns of {value.rows} and {column.rows} rows")
    with nogil:
        for row in range(value.rows):
            if has_key:
                key_size = key.at(row, &p)
            if has_headers:
                headers_size = headers.size(row)
            body = klamm_body_size(0, 0, key_size, value.at(row, &p), headers_size)
            if KLAMM_HEADER + body + klamm_varint_size(body) > limit:
                found = row
                break
    return found


def partition_rows(int64_t start, int64_t stop, BinaryColumn key, NumberColumn given, int32_t count, int32_t keyless):
    """Return rows start ≤ i < stop by partition: (row numbers as int32, ordered by partition; count + 1 starts in
    them).

    A row goes to the partition it is given; else where its key belongs; else to `keyless`.
    """
    cdef Memory selection
    cdef Memory target
    cdef int32_t *row_of
    cdef int32_t *partition_of
    cdef int64_t *next_row
    cdef int64_t i, size, chosen = -1, rows = stop - start
    cdef int32_t j
    cdef const uint8_t *p
    cdef bint has_key = key is not None, has_given = given is not None
    if count < 1 or not 0 <= keyless < count:
        raise ValueError(f"partition {keyless} of {count}")
    if not 0 <= start <= stop <= INT32_MAX:
        raise IndexError(f"rows {start} to {stop}")
    for column in (key, given):
        if column is not None and stop > column.rows:
            raise IndexError(f"rows {start} to {stop} of {column.rows}")
    selection = new_memory(rows * 4)
    target = new_memory(rows * 4)
    row_of = <int32_t *> selection.data
    partition_of = <int32_t *> target.data
    next_row = <int64_t *> malloc((count + 1) * sizeof(int64_t))
    if next_row == NULL:
        raise MemoryError
    try:
        with nogil:
            memset(next_row, 0, (count + 1) * sizeof(int64_t))
            for i in range(rows):
                chosen = given.at(start + i, -1) if has_given else -1
                if chosen >= count:
                    break
                if chosen < 0:
                    size = key.at(start + i, &p) if has_key else -1
                    chosen = keyless if size < 0 else (klamm_murmur2(p, size) & 0x7fffffff) % <uint32_t> count
                partition_of[i] = <int32_t> chosen
                next_row[chosen + 1] += 1
            else:
                i = rows
            for j in range(count):
                next_row[j + 1] += next_row[j]
        if i < rows:
            raise UnknownTopic(f"row {start + i}: there is no partition {chosen}",
                               hint=f"it has {count}, numbered from 0")
        starts = [next_row[j] for j in range(count + 1)]
        with nogil:
            for i in range(rows):
                row_of[next_row[partition_of[i]]] = <int32_t> (start + i)
                next_row[partition_of[i]] += 1
    finally:
        free(next_row)
    selection.size = rows * 4
    return PyMemoryView_FromObject(selection).cast("i"), starts


def partition_records(records, int32_t count, int32_t keyless):
    """Split (key, …) tuples into `count` lists, one per partition. Records without a key go to partition `keyless`."""
    cdef Py_ssize_t i
    cdef PyObject *record
    cdef PyObject *key
    cdef list out
    cdef Slice s
    cdef int32_t partition
    if type(records) is not list and type(records) is not tuple:
        raise TypeError(f"records are {type(records).__name__}, expected a list or a tuple")
    if count < 1 or not 0 <= keyless < count:
        raise ValueError(f"partition {keyless} of {count}")
    out = [[] for _ in range(count)]
    i = 0
    while i < klamm_length(records):
        if i + 2 * AHEAD < klamm_length(records):
            _prefetch(klamm_items(records)[i + 2 * AHEAD])
            klamm_prefetch_pair(klamm_items(records)[i + AHEAD])
        record = klamm_items(records)[i]
        if not PyTuple_CheckExact(record) or PyTuple_GET_SIZE(<object> record) == 0:
            one = <object> record
            if not isinstance(one, (tuple, list)) or len(one) == 0:
                raise TypeError(f"a record is {type(one).__name__}, expected a (key, value) tuple")
            given = one[0]
        else:
            given = None
            key = PyTuple_GET_ITEM(<object> record, 0)
            if PyBytes_CheckExact(key):
                partition = <int32_t> ((klamm_murmur2(<const uint8_t *> PyBytes_AS_STRING(<object> key),
                                                      PyBytes_GET_SIZE(<object> key)) & 0x7fffffff) % <uint32_t> count)
                PyList_Append(<list> out[partition], <object> record)
                i += 1
                continue
            given = <object> key
            one = <object> record
        if given is None:
            partition = keyless
        else:
            partition = partition_for(given, count)
        (<list> out[partition]).append(one)
        i += 1
    return out


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    """Return the splitmix64 hash of `x`: every bit of the result depends on every bit of `x`."""
    x = (x ^ (x >> 30)) * <uint64_t> 0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94d049bb133111eb
    return x ^ (x >> 31)


cdef inline uint64_t digest_of(uint64_t before, BinaryColumn column, int64_t row) noexcept nogil:
    cdef const uint8_t *p = NULL
    cdef int64_t size = column.at(row, &p)
    cdef uint32_t crc = klamm_crc32c(0, p, size) if size > 0 else 0
    return mixed(before ^ (<uint64_t> crc << 32 | <uint32_t> size))


def digest_rows(BinaryColumn value not None, BinaryColumn key=None, NumberColumn timestamps=None,
                HeadersColumn headers=None, uint32_t seed=0):
    """Return the sum, modulo 2**64, of a hash of each record: the same records give the same sum in any order.

    Not for what is made to deceive: it is built on CRC-32C. `seed` tells topics apart.
    """
    cdef uint64_t total = 0, one
    cdef int64_t row, i, first
    cdef bint has_key = key is not None, has_timestamps = timestamps is not None, has_headers = headers is not None
    if has_key and key.rows != value.rows or has_timestamps and timestamps.rows != value.rows \
            or has_headers and headers.rows != value.rows:
        raise ValueError("columns of different lengths")
    with nogil:
        for row in range(value.rows):
            one = digest_of(mixed(seed + <uint64_t> 1), value, row)
            one = digest_of(one, key, row) if has_key else mixed(one ^ <uint64_t> 0xffffffff)
            if has_timestamps:
                one = mixed(one ^ <uint64_t> timestamps.at(row, -1))
            if has_headers:
                first = headers.start_of(row)
                for i in range(first, first + headers.count(row)):
                    one = digest_of(digest_of(one, headers.names, i), headers.values, i)
            total += one
    return total
