/* model.safetensors.index.json beside two good shards; what lies outside the folder must not be opened, which the names
 * show: a shard that was opened has a plain one. */
#include "ckpt/st_set.h"
#include "fuzz.h"

FUZZ_FILES("one.safetensors", "two.safetensors", INDEX_NAME)

static void put_shard(const char *name, const char *tensors, size_t data)
{
    char bytes[512] = { 0 };
    uint64_t length = strlen(tensors);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, tensors, length);
    fuzz_file(name, bytes, 8 + length + data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int made;
    FUZZ_START();
    if (!made) {
        made = 1;
        put_shard("one.safetensors", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
        put_shard("two.safetensors", "{\"b\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]}}", 6);
    }
    struct st_set set;
    fuzz_file(INDEX_NAME, data, size);
    if (st_set_open_index(&set, fuzz_folder()) != OK) {
        return 0;
    }
    size_t folder = strlen(fuzz_folder());
    for (size_t i = 0; i < set.files_count; i++) {
        fuzz_need(strncmp(set.files[i].path, fuzz_folder(), folder) == 0, "shards lie in the folder");
        fuzz_need(strchr(set.files[i].path + folder + 1, '/') == NULL, "names of shards are plain");
    }
    st_set_close(&set);
    return 0;
}
