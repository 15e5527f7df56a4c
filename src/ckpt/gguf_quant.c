/* Why this exists: GGUF files keep weights as blocks of small whole numbers with scales. A number is (scale * number),
 * or (scale * number) plus or minus an offset, in fp32 with one rounding an operation: the products of a 16-bit scale
 * with a few bits are exact, so every reader that follows the format gets the same bits. 16-bit numbers are widened as
 * integers, because the arithmetic mode may flush denormals. */
#include "ckpt/gguf.h"

#include <string.h>

#include "base/bf16.h"
#include "base/f16.h"

#define QK 256u /* elements of a block of the K types */

static float half_at(const unsigned char *p)
{
    uint16_t half;
    memcpy(&half, p, 2);
    uint32_t bits = f16_widen(half);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void widen_f32(const unsigned char *b, size_t count, float *out)
{
    if ((const void *)b != (const void *)out) {
        memcpy(out, b, 4 * count);
    }
}

static void widen_f16(const unsigned char *b, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = half_at(b + 2 * i);
    }
}

static void widen_bf16(const unsigned char *b, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, b + 2 * i, 2);
        out[i] = bf16_to_float(h);
    }
}

/* ---- blocks of 32: the low four bits of byte j are number j, the high ones number j + 16 ---- */

static void widen_q4_0(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 18, out += 32) {
        float d = half_at(b);
        for (uint32_t j = 0; j < 16; j++) {
            out[j] = d * (float)((int)(b[2 + j] & 15) - 8);
            out[j + 16] = d * (float)((int)(b[2 + j] >> 4) - 8);
        }
    }
}

static void widen_q4_1(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 20, out += 32) {
        float d = half_at(b), least = half_at(b + 2);
        for (uint32_t j = 0; j < 16; j++) {
            out[j] = d * (float)(b[4 + j] & 15) + least;
            out[j + 16] = d * (float)(b[4 + j] >> 4) + least;
        }
    }
}

/* Number i of a block of five bits: four in qs, the fifth is bit i of the word at qh. */
static int five_bits(const unsigned char *qh, const unsigned char *qs, uint32_t i)
{
    int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
    return low | (qh[i / 8] >> (i % 8) & 1) << 4;
}

static void widen_q5_0(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 22, out += 32) {
        float d = half_at(b);
        for (uint32_t i = 0; i < 32; i++) {
            out[i] = d * (float)(five_bits(b + 2, b + 6, i) - 16);
        }
    }
}

static void widen_q5_1(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 24, out += 32) {
        float d = half_at(b), least = half_at(b + 2);
        for (uint32_t i = 0; i < 32; i++) {
            out[i] = d * (float)five_bits(b + 4, b + 8, i) + least;
        }
    }
}

static void widen_q8_0(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 34, out += 32) {
        float d = half_at(b);
        for (uint32_t i = 0; i < 32; i++) {
            out[i] = (float)(int8_t)b[2 + i] * d;
        }
    }
}

/* ---- blocks of 256 ---- */

/* Two-bit number i: each 32 bytes hold four rows of 32 numbers, from the low bits up. */
static int two_bits(const unsigned char *qs, uint32_t i)
{
    return qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

static void widen_q2_k(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 84, out += QK) {
        float d = half_at(b + 80), least = half_at(b + 82);
        for (uint32_t i = 0; i < QK; i++) {
            unsigned scale = b[i / 16];
            float dl = d * (float)(scale & 15), ml = least * (float)(scale >> 4);
            out[i] = dl * (float)two_bits(b + 16, i) - ml;
        }
    }
}

/* Scale j of 16, of six bits: four in the nibbles of the first eight bytes, two in the last four bytes; less 32. */
static int q3_scale(const unsigned char *s, uint32_t j)
{
    int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    return (low | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
}

static void widen_q3_k(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 110, out += QK) {
        float d = half_at(b + 108);
        for (uint32_t i = 0; i < QK; i++) {
            bool high = (b[i % 32] >> (i / 32) & 1) != 0; /* not set: 4 less */
            int q = two_bits(b + 32, i) - (high ? 0 : 4);
            out[i] = d * (float)q3_scale(b + 96, i / 16) * (float)q;
        }
    }
}

/* Scale and offset j of 8, of six bits each, in 12 bytes: the first four whole in bytes j and 4 + j, of the others four
 * bits in byte 8 + j - 4 and the two high ones above those of the first four. */
static void q4_scale(const unsigned char *s, uint32_t j, float *scale, float *least)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *least = (float)(s[4 + j] & 63);
    } else {
        *scale = (float)((s[4 + j] & 15) | s[j - 4] >> 6 << 4);
        *least = (float)(s[4 + j] >> 4 | s[j] >> 6 << 4);
    }
}

/* Four-bit number i: each 32 bytes hold two rows of 32 numbers. */
static int four_bits(const unsigned char *qs, uint32_t i)
{
    return qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

static void widen_q4_k(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 144, out += QK) {
        float d = half_at(b), dmin = half_at(b + 2), scale, least;
        for (uint32_t i = 0; i < QK; i++) {
            q4_scale(b + 4, i / 32, &scale, &least);
            out[i] = d * scale * (float)four_bits(b + 16, i) - dmin * least;
        }
    }
}

static void widen_q5_k(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 176, out += QK) {
        float d = half_at(b), dmin = half_at(b + 2), scale, least;
        for (uint32_t i = 0; i < QK; i++) {
            q4_scale(b + 4, i / 32, &scale, &least);
            int q = four_bits(b + 48, i) | (b[16 + i % 32] >> (i / 32) & 1) << 4;
            out[i] = d * scale * (float)q - dmin * least;
        }
    }
}

static void widen_q6_k(const unsigned char *b, size_t count, float *out)
{
    for (size_t n = 0; n < count; n++, b += 210, out += QK) {
        float d = half_at(b + 208);
        for (uint32_t i = 0; i < QK; i++) {
            int low = b[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
            int q = (low | two_bits(b + 128, i) << 4) - 32;
            out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)q;
        }
    }
}

static const struct gguf_type types[] = {
    { 0, "F32", 1, 4, widen_f32 },       { 1, "F16", 1, 2, widen_f16 },       { 2, "Q4_0", 32, 18, widen_q4_0 },
    { 3, "Q4_1", 32, 20, widen_q4_1 },   { 6, "Q5_0", 32, 22, widen_q5_0 },   { 7, "Q5_1", 32, 24, widen_q5_1 },
    { 8, "Q8_0", 32, 34, widen_q8_0 },   { 9, "Q8_1", 32, 40, NULL },         { 10, "Q2_K", QK, 84, widen_q2_k },
    { 11, "Q3_K", QK, 110, widen_q3_k }, { 12, "Q4_K", QK, 144, widen_q4_k }, { 13, "Q5_K", QK, 176, widen_q5_k },
    { 14, "Q6_K", QK, 210, widen_q6_k }, { 15, "Q8_K", QK, 292, NULL },       { 16, "IQ2_XXS", QK, 66, NULL },
    { 17, "IQ2_XS", QK, 74, NULL },      { 18, "IQ3_XXS", QK, 98, NULL },     { 19, "IQ1_S", QK, 50, NULL },
    { 20, "IQ4_NL", 32, 18, NULL },      { 21, "IQ3_S", QK, 110, NULL },      { 22, "IQ2_S", QK, 82, NULL },
    { 23, "IQ4_XS", QK, 136, NULL },     { 24, "I8", 1, 1, NULL },            { 25, "I16", 1, 2, NULL },
    { 26, "I32", 1, 4, NULL },           { 27, "I64", 1, 8, NULL },           { 28, "F64", 1, 8, NULL },
    { 29, "IQ1_M", QK, 56, NULL },       { 30, "BF16", 1, 2, widen_bf16 },    { 34, "TQ1_0", QK, 54, NULL },
    { 35, "TQ2_0", QK, 66, NULL },       { 39, "MXFP4", 32, 17, NULL },       { 40, "NVFP4", 64, 36, NULL },
    { 41, "Q1_0", 128, 18, NULL },
};
#define TYPES (sizeof(types) / sizeof(types[0]))

const struct gguf_type *gguf_type_find(uint32_t number)
{
    for (size_t i = 0; i < TYPES; i++) {
        if (types[i].number == number) {
            return &types[i];
        }
    }
    return NULL;
}

const struct gguf_type *gguf_type_named(const char *name)
{
    for (size_t i = 0; i < TYPES; i++) {
        if (strcmp(types[i].name, name) == 0) {
            return &types[i];
        }
    }
    return NULL;
}
