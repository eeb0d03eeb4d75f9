# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False, embedsignature=False
"""Bytes <-> records: the native part of batch/. `header` says how a batch lies in bytes.

One module, a file a noun:

    record.h        bytes: varints, one record, one batch header        (C, trusts nothing it reads)
    crc32c.h        the checksum                                        (C)
    externs.pxd     what is used of both, here and in kafka/_produce.pyx
    _builder.pxi    records -> a batch: Builder, encode_one
    _table.pxi      Arrow columns -> a batch; which rows go to which partition
    _record.pxi     Record, and Headers
    _decode.pxi     headers and checks of batches: walk, verify
    _decoder.pxi    batches -> Record objects, tuples, values: decode, Decoder
    _records.pxi    records that were returned, and how far they were handed out
    _columns.pxi    batches -> Arrow columns
    _accumulator.pxi       behind producer.send: partition, Builder and Delivery of each record
    _forwarder.pxi         the same for a cluster: records to librdkafka, deliveries as it reports them
    _messages.pxi          messages of librdkafka -> Record objects, and those -> batches
    _keymap.pxi     the latest offset of each key; batches without what is not the latest
    _scan.pxi       records that are read in pieces: keys, timestamps

Loops over records touch no Python object where the data allows it, and then run without the GIL.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Fetch, PyErr_Occurred, PyErr_Restore
from cpython.list cimport PyList_Append, PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from klamm.batch.externs cimport *

from bisect import bisect_left as _bisect_left, bisect_right as _bisect_right
from collections.abc import Mapping as _Mapping
from copy import copy as _copy
from datetime import UTC as _UTC, datetime as _datetime, timedelta as _timedelta
from _thread import allocate_lock as _allocate_lock, get_ident as _get_ident
from json import loads as _parse_json
from logging import getLogger as _get_logger
from types import GenericAlias as _GenericAlias

from klamm.batch import codecs as _codecs
from klamm.batch.header import Header
from klamm.errors import CorruptBatch, InvalidRecord, InvalidTimestamp, RecordTooLarge, UnknownTopic
from klamm.types import Batch as _Batch, Position as _Position, TopicPartition as _TopicPartition
from klamm.other_names import unknown_attribute as _unknown_attribute
from klamm.times import to_timeout as _to_timeout


cdef extern from *:
    """
    /* The tuple a list holds a few records ahead, and the bytes it points at, are asked for before they are needed:
       a list of a million pairs is three million objects somewhere in memory. */
    static inline void klamm_prefetch_value(PyObject *o) {
        __builtin_prefetch(o);
        __builtin_prefetch((char *)o + 64);
        __builtin_prefetch((char *)o + 128);
    }
    static inline void klamm_prefetch_pair(PyObject *o) {
        if (PyTuple_CheckExact(o) && PyTuple_GET_SIZE(o) >= 2) {
            __builtin_prefetch(PyTuple_GET_ITEM(o, 0));
            klamm_prefetch_value(PyTuple_GET_ITEM(o, 1));
        }
    }
    static inline PyObject **klamm_items(PyObject *o) { return PySequence_Fast_ITEMS(o); }
    static inline Py_ssize_t klamm_length(PyObject *o) { return PySequence_Fast_GET_SIZE(o); }
    """
    void klamm_prefetch_value(PyObject *o) nogil
    void klamm_prefetch_pair(PyObject *o) nogil
    PyObject **klamm_items(object o)
    Py_ssize_t klamm_length(object o)
    int PyBytes_CheckExact(PyObject *o) nogil
    int PyTuple_CheckExact(PyObject *o) nogil
    void PyObject_GC_UnTrack(void *o)
    void _prefetch "__builtin_prefetch"(const void *p) nogil
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef enum:
    NOGIL_SIZE = 32768  # bytes below which letting go of the GIL costs more than it gives


cdef int raise_busy() except -1:
    """Raise: two threads use an object that is not thread-safe (it releases the GIL while it changes)."""
    raise RuntimeError("another thread is at work on this object")


cdef class Memory:
    """Bytes of our own that others may look at: a buffer that frees itself when the last view of it is gone."""

    cdef uint8_t *data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t size  # what a view of it shows
    cdef int views

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1

    def __len__(self):
        return self.size


cdef Memory new_memory(Py_ssize_t capacity):
    cdef Memory memory = Memory.__new__(Memory)
    memory.data = <uint8_t *> klamm_malloc(capacity if capacity > 0 else 1)
    if memory.data == NULL:
        raise MemoryError
    memory.capacity = capacity
    return memory


cdef Memory grown_memory(Memory memory, Py_ssize_t used, Py_ssize_t capacity):
    """Return the bytes in larger memory. If there are views of the old memory, it is copied, so they stay valid."""
    cdef Memory larger
    cdef uint8_t *moved
    if memory.views > 0 or capacity >= <Py_ssize_t> KLAMM_HUGE_PAGE:
        larger = new_memory(capacity)
        memcpy(larger.data, memory.data, used)
        return larger
    moved = <uint8_t *> realloc(memory.data, capacity)
    if moved == NULL:
        raise MemoryError
    memory.data = moved
    memory.capacity = capacity
    return memory


@cython.final
@cython.freelist(8)
cdef class View:
    """A buffer of any object, held for reading."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t *data
    cdef Py_ssize_t size

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *> self.data, self.size, 1, flags)


cdef View viewed(object given):
    cdef View view = View.__new__(View)
    PyObject_GetBuffer(given, &view.buffer, PyBUF_SIMPLE)
    view.held = True
    view.data = <const uint8_t *> view.buffer.buf
    view.size = view.buffer.len
    return view


cdef struct Slice:
    const uint8_t *data
    Py_ssize_t size  # -1: None
    bint held        # `view` has to be given back
    Py_buffer view


cdef inline int take(object given, Slice *out, str what) except -1:
    """Point `out` at the bytes of a key or a value."""
    out.held = False
    if PyBytes_CheckExact(<PyObject *> given):
        out.data = <const uint8_t *> PyBytes_AS_STRING(given)
        out.size = PyBytes_GET_SIZE(given)
    elif given is None:
        out.data = NULL
        out.size = -1
    else:
        take_view(given, out, what)
    return 0


cdef int take_view(object given, Slice *out, str what) except -1:
    if not PyObject_CheckBuffer(given):
        raise TypeError(f"{what} is {type(given).__name__}, expected bytes or None (a serde makes bytes of it: serde=\"json\")")
    PyObject_GetBuffer(given, &out.view, PyBUF_SIMPLE)
    out.held = True
    out.data = <const uint8_t *> out.view.buf
    out.size = out.view.len
    return 0


cdef inline void give_back(Slice *taken) noexcept:
    if taken.held:
        PyBuffer_Release(&taken.view)


cdef list header_pairs(object headers):
    """Return the headers of a mapping, or of pairs, as a list of (name, bytes or None). Text becomes UTF-8."""
    cdef list pairs = []
    if not isinstance(headers, (list, tuple, Headers)):
        if isinstance(headers, _Mapping):
            headers = headers.items()
        elif isinstance(headers, (str, bytes)) or not hasattr(headers, "__iter__"):
            raise TypeError(f"headers are {type(headers).__name__}, expected a mapping or (name, value) pairs")
    for pair in headers:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"a header is {pair!r}, expected a (name, value) pair")
        given_name, value = pair
        if not isinstance(given_name, str):
            raise TypeError(f"a header's name is {type(given_name).__name__}, expected str")
        if value is not None and type(value) is not bytes:
            if isinstance(value, str):
                value = (<str> value).encode()
            elif not PyObject_CheckBuffer(value):
                raise TypeError(f"the value of header {given_name!r} is {type(value).__name__}, expected bytes, str or None")
            else:
                value = bytes(value)
        pairs.append((given_name, value))
    return pairs


cdef bytes encode_headers(object headers):
    """Return the header count and the headers, as they end a record."""
    cdef list parts = [((<str> each[0]).encode(), each[1]) for each in header_pairs(headers)]
    cdef Py_ssize_t size, name_size
    cdef uint8_t *p
    cdef bytes name, out
    size = klamm_varint_size(len(parts))
    for name, value in parts:
        size += klamm_varint_size(len(name)) + len(name)
        size += klamm_varint_size(-1) if value is None else klamm_varint_size(len(<bytes> value)) + len(<bytes> value)
    out = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *> PyBytes_AS_STRING(out)
    p = klamm_put_varint(p, len(parts))
    for name, value in parts:
        name_size = PyBytes_GET_SIZE(name)
        p = klamm_put_varint(p, name_size)
        memcpy(p, PyBytes_AS_STRING(name), name_size)
        p += name_size
        if value is None:
            p = klamm_put_varint(p, -1)
        else:
            p = klamm_put_varint(p, PyBytes_GET_SIZE(value))
            memcpy(p, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
            p += PyBytes_GET_SIZE(value)
    return out


def crc32c(data, uint32_t value=0):
    """Return the CRC32C of `data`; `value` is the CRC of what came before it."""
    cdef View view = viewed(data)
    if view.size < NOGIL_SIZE:
        return klamm_crc32c(value, view.data, view.size)
    with nogil:
        value = klamm_crc32c(value, view.data, view.size)
    return value


def crc32c_software(data, uint32_t value=0):
    """Like `crc32c`, without the CPU's instruction; for tests."""
    cdef View view = viewed(data)
    return klamm_crc32c_software(value, view.data, view.size)


def murmur2(key):
    """Return Kafka's hash of a key, signed as in Java."""
    cdef Slice s
    take(key, &s, "key")
    if s.size < 0:
        raise TypeError("key is None, expected bytes")
    cdef uint32_t h = klamm_murmur2(s.data, s.size)
    give_back(&s)
    return <int32_t> h


def partition_for(key, int64_t count):
    """Return the partition of `count` that Kafka's Java client chooses for a key."""
    cdef Slice s
    if count < 1:
        raise ValueError(f"{count} partitions")
    take(key, &s, "key")
    if s.size < 0:
        raise TypeError("key is None, expected bytes")
    cdef uint32_t h = klamm_murmur2(s.data, s.size)
    give_back(&s)
    return (h & 0x7fffffff) % count


def checked_partition(chosen, int64_t count):
    """Return what the user's partitioner chose. Raise if it is not a partition."""
    if not isinstance(chosen, int) or isinstance(chosen, bool):
        raise TypeError(f"the partitioner gave {type(chosen).__name__}, expected int")
    if not 0 <= chosen < count:
        raise ValueError(f"the partitioner gave {chosen} of {count} partitions")
    return chosen


include "_builder.pxi"
include "_record.pxi"
include "_decode.pxi"
include "_records.pxi"
include "_decoder.pxi"
include "_columns.pxi"
include "_table.pxi"
include "_accumulator.pxi"
include "_forwarder.pxi"
include "_messages.pxi"
include "_keymap.pxi"
include "_scan.pxi"
