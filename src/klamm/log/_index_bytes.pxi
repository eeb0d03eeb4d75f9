"""The bytes of an index, for rebuilding one."""


def index_header(int64_t base, uint32_t first, int64_t size=0, int64_t last_position=0, uint32_t last=0):
    """Return the first bytes of an index that is rebuilt: of an open segment, or of a closed one."""
    cdef IndexHeader header
    fill_index_header(&header, base, first)
    header.size, header.last_position, header.last = size, last_position, last
    header.crc = header_crc(&header)
    return bytes((<char *>&header)[:sizeof(header)])


def index_entry(int64_t offset, int64_t position, int64_t max_timestamp):
    cdef IndexEntry entry
    entry.offset, entry.position, entry.max_timestamp, entry.unused = offset, position, max_timestamp, 0
    entry.crc = index_crc(&entry)
    return bytes((<char *>&entry)[:sizeof(entry)])
