/* CRC32C (Castagnoli), the checksum of Kafka's v2 record batches.
 *
 *     uint32_t klamm_crc32c(uint32_t crc, const void *data, size_t size)
 *
 * Works like zlib's crc32(): pass 0 to begin, the last result to go on.
 *
 * Three ways, chosen once at run time, so that one binary runs on every CPU of its architecture:
 *   x86-64   SSE4.2 + PCLMUL. The crc32 instruction takes 3 cycles but one can start in each cycle: three thirds of a
 *            block are summed side by side and joined by two carry-less multiplications.
 *   aarch64  the crc32c instructions, one stream.
 *   else     slicing by 8: eight tables, eight bytes a step.
 *
 * Everything is static: each native module that includes this file has its own copy and its own tables.
 */
#ifndef KLAMM_CRC32C_H
#define KLAMM_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define KLAMM_CRC_X86 1
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#define KLAMM_CRC_ARM 1
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#define KLAMM_CRC_POLYNOMIAL 0x82f63b78u /* bits reversed: the lowest bit is the highest power of x */
#define KLAMM_CRC_WORDS 256              /* longest third of an interleaved block, in words of 8 bytes */

static uint32_t klamm_crc_table[8][256];
static uint32_t klamm_crc_power[2 * KLAMM_CRC_WORDS + 1]; /* [w] = x^(64 w - 33): moves a sum over w words */

/* All functions below take and give the raw register, without the inversions at both ends. */

static uint32_t klamm_crc_software(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = klamm_crc_table[7][crc & 0xff] ^ klamm_crc_table[6][(crc >> 8) & 0xff] ^
              klamm_crc_table[5][(crc >> 16) & 0xff] ^ klamm_crc_table[4][crc >> 24] ^
              klamm_crc_table[3][p[4]] ^ klamm_crc_table[2][p[5]] ^
              klamm_crc_table[1][p[6]] ^ klamm_crc_table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--) crc = (crc >> 8) ^ klamm_crc_table[0][(crc ^ *p++) & 0xff];
    return crc;
}

#ifdef KLAMM_CRC_X86
static inline uint64_t klamm_crc_word(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

#ifdef __clang__
#define KLAMM_CRC_TARGET "sse4.2,crc32,pclmul" /* clang counts the crc32 instruction apart; old gcc does not know it */
#else
#define KLAMM_CRC_TARGET "sse4.2,pclmul"
#endif

__attribute__((target(KLAMM_CRC_TARGET)))
static uint32_t klamm_crc_x86(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t a = crc;
    while (n >= 96) {
        size_t words = n / 24 < KLAMM_CRC_WORDS ? n / 24 : KLAMM_CRC_WORDS;
        size_t third = words * 8;
        uint64_t b = 0, c = 0;
        const uint8_t *end = p + third - 8;
        for (; p < end; p += 8) {
            a = _mm_crc32_u64(a, klamm_crc_word(p));
            b = _mm_crc32_u64(b, klamm_crc_word(p + third));
            c = _mm_crc32_u64(c, klamm_crc_word(p + 2 * third));
        }
        a = _mm_crc32_u64(a, klamm_crc_word(p));
        b = _mm_crc32_u64(b, klamm_crc_word(p + third));
        /* a and b belong 2 and 1 thirds further left. Their products are folded in with c's last word. */
        __m128i moved_a = _mm_clmulepi64_si128(
            _mm_cvtsi64_si128((long long)a), _mm_cvtsi32_si128((int)klamm_crc_power[2 * words]), 0);
        __m128i moved_b = _mm_clmulepi64_si128(
            _mm_cvtsi64_si128((long long)b), _mm_cvtsi32_si128((int)klamm_crc_power[words]), 0);
        uint64_t moved = (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(moved_a, moved_b));
        a = _mm_crc32_u64(c, klamm_crc_word(p + 2 * third) ^ moved);
        p += 8 + 2 * third;
        n -= 3 * third;
    }
    for (; n >= 8; n -= 8, p += 8) a = _mm_crc32_u64(a, klamm_crc_word(p));
    crc = (uint32_t)a;
    while (n--) crc = _mm_crc32_u8(crc, *p++);
    return crc;
}
#endif

#ifdef KLAMM_CRC_ARM
__attribute__((target("+crc")))
static uint32_t klamm_crc_arm(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __crc32cd(crc, word);
    }
    while (n--) crc = __crc32cb(crc, *p++);
    return crc;
}
#endif

typedef uint32_t (*klamm_crc_function)(uint32_t, const uint8_t *, size_t);
static uint32_t klamm_crc_first(uint32_t crc, const uint8_t *p, size_t n);
static klamm_crc_function klamm_crc_chosen = klamm_crc_first;

static inline klamm_crc_function klamm_crc_load(void) {
#ifdef __GNUC__
    return __atomic_load_n(&klamm_crc_chosen, __ATOMIC_ACQUIRE);
#else
    return klamm_crc_chosen;
#endif
}

/* The first call fills the tables and chooses. Threads may race here: they all write the same values. */
static void klamm_crc_choose(void) {
    klamm_crc_function best = klamm_crc_software;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t r = i;
        for (int bit = 0; bit < 8; bit++) r = (r >> 1) ^ (r & 1 ? KLAMM_CRC_POLYNOMIAL : 0);
        klamm_crc_table[0][i] = r;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) {
            uint32_t r = klamm_crc_table[k - 1][i];
            klamm_crc_table[k][i] = (r >> 8) ^ klamm_crc_table[0][r & 0xff];
        }
    uint32_t power = 1; /* x^31, the power of word 1 */
    for (int w = 1; w <= 2 * KLAMM_CRC_WORDS; w++) {
        klamm_crc_power[w] = power;
        for (int byte = 0; byte < 8; byte++) power = (power >> 8) ^ klamm_crc_table[0][power & 0xff];
    }
#if defined(KLAMM_CRC_X86)
    unsigned a, b, c = 0, d; /* not __builtin_cpu_supports, which needs a library that not every compiler brings */
    if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) && (c & bit_PCLMUL)) best = klamm_crc_x86;
#elif defined(KLAMM_CRC_ARM)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32) best = klamm_crc_arm;
#endif
#ifdef __GNUC__
    __atomic_store_n(&klamm_crc_chosen, best, __ATOMIC_RELEASE);
#else
    klamm_crc_chosen = best;
#endif
}

static uint32_t klamm_crc_first(uint32_t crc, const uint8_t *p, size_t n) {
    klamm_crc_choose();
    return klamm_crc_load()(crc, p, n);
}

static inline uint32_t klamm_crc32c(uint32_t crc, const void *data, size_t size) {
    return ~klamm_crc_load()(~crc, (const uint8_t *)data, size);
}

/* The software way, whatever the CPU has; for tests. */
static inline uint32_t klamm_crc32c_software(uint32_t crc, const void *data, size_t size) {
    if (klamm_crc_load() == klamm_crc_first) klamm_crc_choose();
    return ~klamm_crc_software(~crc, (const uint8_t *)data, size);
}

#endif
