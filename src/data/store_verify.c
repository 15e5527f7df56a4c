/* Why this exists: opening a store checks what its index says; this reads every token too, which a run cannot afford.
 */
#include "data/build.h"
#include "data/store_int.h"

static enum err check_content(const char *prefix, const char *recorded, const char *found)
{
    if (recorded[0] != '\0' && strcmp(recorded, found) != 0) {
        return FAIL(ERR_DATA,
                    "%s.bin: content hash %s, the build recorded %s in %s.json | the tokens were changed after the "
                    "build, or the files are of different builds",
                    prefix, found, recorded, prefix);
    }
    return OK;
}

enum err data_verify(const char *prefix, uint64_t vocab)
{
    struct store *s = NULL;
    struct store_info info;
    char content[33];
    int32_t most;
    TRY(store_open(&s, prefix));
    prefix = s->prefix; /* `prefix` may end in .bin or .idx */
    enum err err;
    TRY_OUT(store_info(s, &info));
    vocab = vocab > 0 ? vocab : info.vocab;
    TRY_OUT(store_check_width(s, vocab));
    TRY_OUT(store_scan(s, vocab, content, &most));
    TRY_OUT(check_content(prefix, info.content, content));
    printf("%s: %llu documents, %llu sequences, %llu tokens, %s, highest id %d, content %s%s, OK\n", prefix,
           (unsigned long long)store_documents(s), (unsigned long long)store_sequences(s),
           (unsigned long long)store_tokens(s), store_token_type(s), most, content,
           info.content[0] != '\0' ? " as recorded" : "");
    if (vocab == 0) {
        printf("ids were not compared with a vocabulary: there is no %s.json; --vocab gives one\n", prefix);
    }
out:
    store_close(s);
    return err;
}
