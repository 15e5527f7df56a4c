/* A tokenizer in the metadata of a GGUF file, and as the files of a Hugging Face folder. Not collective. */
#ifndef CKPT_GGUF_TOKENIZER_H
#define CKPT_GGUF_TOKENIZER_H

#include "ckpt/gguf_write.h"
#include "conf/model_conf.h"

/* How llama.cpp calls the way a text is cut into words, and what Hugging Face's pre_tokenizer is for it. */
struct gguf_pre {
    const char *name;
    enum { PRE_BYTES, PRE_DIGITS, PRE_REGEX } kind; /* GPT-2's words; digits one by one before; own expression */
    const char *regex;
    bool ignore_merges, adds_bos, nfc;
};
extern const struct gguf_pre gguf_pres[];
extern const size_t gguf_pres_count;

/* Texts of a folder. Each may stay empty: there is no such file. */
struct gguf_tokenizer_texts {
    struct buf tokenizer, config, sentencepiece; /* tokenizer.json, tokenizer_config.json, tokenizer.model */
};
void gguf_tokenizer_release(struct gguf_tokenizer_texts *t);
/* What the metadata says; a warning where it holds no tokenizer. Kinds that are not in this version are refused by
 * name (ERR_DATA). */
MUST_USE enum err gguf_tokenizer_read(const struct gguf_file *f, struct gguf_tokenizer_texts *out);
/* The keys that llama.cpp reads, from the files in `folder`; the vocabulary is filled up to that of the model. A
 * folder without a tokenizer: a warning. */
MUST_USE enum err gguf_tokenizer_put(struct gguf_out *o, const char *folder, const struct model_conf *c);

#endif
