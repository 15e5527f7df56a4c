/* A SentencePiece model file (protocol buffers): what encoding and decoding need of it. */
#ifndef DATA_SPM_FILE_H
#define DATA_SPM_FILE_H

#include "base/buf.h"
#include "base/err.h"

enum spm_type { SPM_NORMAL = 1, SPM_UNKNOWN, SPM_CONTROL, SPM_USER, SPM_UNUSED, SPM_BYTE };
enum spm_kind { SPM_UNIGRAM = 1, SPM_BPE, SPM_WORD, SPM_CHAR };

struct spm_piece { /* its id is its place */
    const char *text; /* in the file's bytes */
    size_t bytes;
    float score;
    enum spm_type type;
};

struct spm_rules { /* of normalization */
    const char *map; /* the compiled map, in the file's bytes */
    size_t map_bytes;
    bool dummy_prefix, remove_extra, escape;
};

struct spm_file {
    struct spm_piece *piece;
    size_t count, capacity;
    enum spm_kind kind;
    bool byte_fallback, suffix; /* suffix: white space belongs to the word before it */
    int64_t eos;                /* -1: none */
    const char *unk_surface;    /* what an unknown token is decoded to */
    size_t unk_surface_bytes;
    struct spm_rules rules, back; /* back: of the decoder */
};

/* From the bytes of a file, which must outlive the result. `where` names the file. ERR_DATA with the field and its
 * offset for anything that is not as it should be; fields of no concern here are passed over. */
MUST_USE enum err spm_file_parse(struct spm_file *m, const char *where, const char *data, size_t bytes);
void spm_file_release(struct spm_file *m);

#endif
