/* What the files of a model folder say about its special tokens and the size of its vocabulary. */
#ifndef CONF_TOKENS_H
#define CONF_TOKENS_H

#include "base/buf.h"
#include "base/err.h"
#include "conf/finding.h"

/* Compare config.json, generation_config.json, tokenizer_config.json and tokenizer.json of a folder, those that are
 * there. `table` receives a line for each of bos, eos, pad and unk with what each file says, and one about the
 * vocabulary. Contradictions are errors in `f`, ids outside the vocabulary too; a pad token that is the end of a text
 * is a warning. */
MUST_USE enum err tokens_check(const char *folder, struct findings *f, struct buf *table);

#endif
