/* A manifest: what the files of a model are, as hashes, so that their bytes can be taken from anybody.
 *
 * It is a text: the model's name and id, the hash of what a client computes itself, the hash of each block, and then
 * the files, each cut into pieces of at most 1 MiB with a hash each. Pieces end where a block ends, so a program that
 * has some blocks has their pieces whole. The manifest's id is the SHA-256 of the text: a program that knows the id
 * needs to trust no other one for the rest.
 *
 *     swarm manifest 1
 *     name SmolLM2 135M Instruct
 *     model HASH
 *     ends HASH
 *     block HASH                     (one line for each block, in order)
 *     file SIZE HEADER NAME          (one for each file; HEADER: bytes at its beginning that opening the model reads)
 *     piece BYTES HASH               (those of the file, in order)
 *     signed NODE SIGNATURE          (perhaps, and not part of the id: an Ed25519 key, and its signature of the id)
 *
 * Central type: sn_manifest, immutable; any thread may read it. */
#ifndef SN_SHARING_HUB_MANIFEST_H
#define SN_SHARING_HUB_MANIFEST_H

#include "base/cancel.h"
#include "base/file.h"
#include "base/mem.h"
#include "sharing/hub/model_name.h"
#include "model/model.h"
#include "model/range_set.h"

/* A manifest of SN_MANIFEST_MAX bytes is of 3.4 TB. */
enum { SN_PIECE_MAX = 1 << 20, SN_MANIFEST_MAX = 256 << 20, SN_MANIFEST_FILES_MAX = 1024 };

/* The manifest beside a model's files: this name in the folder of a model that is a folder, or comes from a swarm; for
 * another file its own name and SN_MANIFEST_ENDING. */
#define SN_MANIFEST_NAME   "swarm.manifest"
#define SN_MANIFEST_ENDING ".manifest"

typedef struct sn_piece {
    uint64_t from, to; /* bytes of the file */
    sn_hash hash;
} sn_piece;

typedef struct sn_manifest_file {
    char name[SN_HUB_FILE_SIZE]; /* without a folder; sn_hub_path_is_safe */
    uint64_t size, header;
    size_t first_piece, n_pieces; /* of sn_manifest.pieces */
} sn_manifest_file;

typedef struct sn_manifest {
    sn_hash id;
    size_t len;                    /* bytes of the text that the id is of: all but the signature */
    char name[SN_MODEL_NAME_SIZE]; /* of the model, for people */
    sn_hash model, ends;           /* sn_model_id, sn_model_client_hash */
    sn_hash *blocks;               /* (n_blocks): sn_model_block_hash */
    int n_blocks;
    sn_manifest_file *files;
    size_t n_files;
    sn_piece *pieces;
    size_t n_pieces;
    bool is_signed; /* the signature was read, and is for the caller to verify */
    uint8_t signer[32], signature[64];
} sn_manifest;

/* The manifest that a user gives for a model, whose signature was verified, with its text. */
typedef struct sn_trusted_manifest {
    sn_manifest manifest;
    sn_buf text;
} sn_trusted_manifest;

/* Reads a manifest that may come from anybody. SN_REFUSED says in which line it is wrong. Free *out in any case. */
sn_status sn_manifest_parse(const char *text, size_t len, sn_manifest *out, sn_err *err) SN_MUST_USE;
void sn_manifest_fini(sn_manifest *manifest); /* accepts a zeroed struct */

/* Reads the manifest beside the model at `path`, if there is one (found). text NULL: it is not asked for. */
sn_status sn_manifest_read_beside(const char *path, bool *found, sn_buf *text, sn_manifest *out,
                                  sn_err *err) SN_MUST_USE;
/* Writes one there. folder: the model is a folder. */
sn_status sn_manifest_write_beside(const char *path, bool folder, const sn_buf *text, sn_err *err) SN_MUST_USE;

/* The path of a file of the model at `path`, which is a folder, the file itself, or one of several GGUF files. */
sn_status sn_manifest_file_path(const sn_manifest *manifest, size_t file, const char *path, char out[SN_PATH_SIZE],
                                sn_err *err) SN_MUST_USE;

/* How a manifest is made. Zeroed: on all cores, and from the files alone. */
typedef struct sn_manifest_making {
    const sn_cancel *cancel; /* looked at after every piece; NULL: never set */
    int threads;             /* 0: one for each core */
    const char *cache;       /* sn_model_keep_hashes; NULL: nothing is kept */
    const char *resumed;     /* pieces that are done are kept in this file and not hashed again; the caller gives it a
                                name that is of these files, as they are, alone, and removes it. NULL: not kept */
} sn_manifest_making;

/* Appends the manifest of the model at `path` to *text. Reads all of its bytes; where they are more than a quarter of
 * the memory, they do not stay in the system's page cache. making: NULL as zeroed. SN_REFUSED: the files have holes, or
 * are not complete, or too large for a manifest, which is said before they are read. SN_RETRY: cancelled. */
sn_status sn_manifest_make(const char *path, const sn_manifest_making *making, sn_buf *text, sn_err *err) SN_MUST_USE;

/* Compares the files of the model at `path`, as far as they are here, with the manifest. *here, *missing: bytes that
 * are right, and that are not here. SN_REFUSED: a file is another one. */
sn_status sn_manifest_check(const sn_manifest *manifest, const char *path, uint64_t *here, uint64_t *missing,
                            sn_err *err) SN_MUST_USE;

/* The same for one of its files; *here is added to. */
sn_status sn_manifest_check_file(const sn_manifest *manifest, const sn_manifest_file *file, const char *path,
                                 uint64_t *here, sn_err *err) SN_MUST_USE;

/* Whether a few pieces of each file, as far as they are here, are the manifest's: a model that was trained further has
 * the id of the one before. */
bool sn_manifest_fits(const sn_manifest *manifest, const char *path);

/* Gives the model the block hashes of the manifest beside its files, if there is one, it is of this model and fits the
 * files. path: of the model. So a client that has no blocks uses only nodes that have the blocks of the manifest. */
void sn_manifest_tell(const char *path, sn_model *model);

/* The piece of the file that holds byte `at`; at < file->size. */
const sn_piece *sn_manifest_piece_at(const sn_manifest *manifest, const sn_manifest_file *file, uint64_t at);

#endif
