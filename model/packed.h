/* Quantised weights of folders that lie in several tensors: codes in one, their scales, zeros and the like beside it.
 * compressed-tensors, GPTQ, AWQ, bitsandbytes and ModelOpt write them; the names, types and shapes of the tensors say
 * what they are, whichever wrote them, so that what a configuration leaves out of its quantisation is simply there as a
 * float tensor.
 *
 * sn_packed_join makes one sn_model_tensor of them, whose type is one of base/dtype.h that holds the same numbers;
 * sn_packed_unpack rearranges rows into its blocks. What the numbers are is defined by the reference's own unpacking in
 * float32: tests/fixtures/packed/make_packed.py. Private to model/. */
#ifndef SN_MODEL_PACKED_H
#define SN_MODEL_PACKED_H

#include "model/model.h"
#include "model/safetensors.h"

typedef enum sn_packed_part {
    SN_PACKED_CODES,
    SN_PACKED_SCALES,
    SN_PACKED_ZEROS,   /* the codes that stand for 0 */
    SN_PACKED_SINGLE,  /* a float32 for the whole tensor; of experts in one tensor several, for equal parts of the rows
                        */
    SN_PACKED_GROUPS,  /* the group of each column */
    SN_PACKED_BIAS,    /* a bias that the model's family does not have: it must be 0 */
    SN_PACKED_NESTED,  /* NF4 and FP4: the scales are codes; these are their scales, */
    SN_PACKED_MAP,     /* the numbers of the codes, */
    SN_PACKED_NUMBERS, /* those of the weights' codes, */
    SN_PACKED_STATE,   /* and what else there is to say: as JSON; of LLM.int8 a byte */
    SN_PACKED_OF_FP4,  /* the same of FP4 */
    SN_PACKED_PARTS
} sn_packed_part;

/* How codes lie in their tensor. */
typedef enum sn_packed_layout {
    SN_PACKED_ROWS4,    /* by rows, from the low half of each byte on */
    SN_PACKED_ROWS8,    /* by rows, bytes */
    SN_PACKED_INTEGERS, /* by rows, signed bytes */
    SN_PACKED_NVFP4,    /* GGUF: blocks of 64 with their scales, base/dtype.h */
    SN_PACKED_COLUMNS,  /* GPTQ, 2, 3, 4 or 8 bits: words (k * bits / 32, n) are the bits of columns k, k + 1, .. of row
                           n one after the other; zeros (group, n * bits / 32) likewise those of rows n, n + 1, .. */
    SN_PACKED_AWQ,      /* word (k, n / 8) has column k of rows n .. n + 7, and zeros (group, n / 8) likewise */
} sn_packed_layout;

/* What the tensors of one matrix are. Views of its rows share it. */
typedef struct sn_packed {
    sn_packed_layout layout;
    unsigned bits; /* of a code */
    size_t rows, cols;
    size_t group;                       /* columns that share a scale */
    bool single;                        /* all rows share one, too */
    sn_dtype scale_type;                /* F32, F16 or BF16; SN_DTYPE_COUNT: bytes that go into blocks as they are */
    unsigned zero;                      /* without zeros: the code that stands for 0 */
    bool ordered;                       /* columns lie otherwise than group by group: sn_packed_order */
    bool zeros_less_one;                /* the file has them so */
    bool single_divides;                /* scales are divided by the tensor's */
    bool largest;                       /* they are what 127 stands for */
    const void *parts[SN_PACKED_PARTS]; /* in the file; NULL: there is none */
    size_t bytes[SN_PACKED_PARTS];
    sn_dtype bias_type;
} sn_packed;

/* The two below for NF4 and FP4 of bitsandbytes (packed_float4.c). */
sn_status sn_packed_join_float4(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], sn_packed *packed,
                                sn_dtype *dtype, sn_err *err) SN_MUST_USE;
sn_status sn_packed_unpack_float4(const sn_model_tensor *tensor, uint8_t *to, sn_err *err) SN_MUST_USE;

/* By what the parts are called: model.c has the names. */
typedef enum sn_packed_naming {
    SN_PACKED_COMPRESSED, /* compressed-tensors */
    SN_PACKED_BY_COLUMNS, /* GPTQ, AWQ */
    SN_PACKED_FLOAT4,     /* bitsandbytes: NF4, FP4 */
    SN_PACKED_IN_PLACE, /* the codes have the name of the float matrix; ModelOpt, FP8 and INT8 of compressed-tensors */
    SN_PACKED_INT8,     /* bitsandbytes: LLM.int8 */
} sn_packed_naming;

/* Makes of the parts' tensors (NULL: there is none; codes and scales are there) a matrix (rows, cols). *dtype: the type
 * of the blocks. SN_REFUSED says what does not fit. */
sn_status sn_packed_join(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], sn_packed_naming naming,
                         size_t rows, size_t cols, const sn_hparams *hparams, sn_packed *out, sn_dtype *dtype,
                         sn_err *err) SN_MUST_USE;

/* The same of a GGUF file's NVFP4 with n_scales float32 beside it, of the matrices (rows / n_scales, cols) that lie one
 * after the other. blocks, scales: in the file. */
sn_status sn_packed_join_gguf(const sn_model_tensor *blocks, const sn_model_tensor *scales, sn_packed *out,
                              sn_dtype *dtype, sn_err *err) SN_MUST_USE;

/* Bytes of all rows as blocks of the type, which sn_packed_join chose; of the codes in the file; of a part, which is
 * returned. */
size_t sn_packed_bytes(const sn_packed *packed, sn_dtype dtype);
size_t sn_packed_file_bytes(const sn_packed *packed);
const void *sn_packed_part_of(const sn_packed *packed, int part, size_t *bytes);

/* order (cols): which column is at place k when they lie group by group. SN_REFUSED: groups of other sizes. */
sn_status sn_packed_order(const sn_packed *packed, int32_t *order, sn_err *err) SN_MUST_USE;

/* Writes the blocks of the tensor's rows, one after the other, to `to` (tensor->bytes). SN_REFUSED: scales that are no
 * numbers or not exact in the type, groups in another order than that of the columns, a bias. */
sn_status sn_packed_unpack(const sn_model_tensor *tensor, void *to, sn_err *err) SN_MUST_USE;

#endif
