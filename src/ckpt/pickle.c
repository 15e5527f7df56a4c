/* Why this exists: a pickle is a program, and reading it runs it. Many models are still published as one, so the
 * refusal names what turns them into safetensors, once and on a machine where that may run. */
#include "ckpt/pickle.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>

#include "base/mem.h"

#define LOAD_ALL(pattern)                                                                                              \
    "python3 -c 'import glob, torch; from safetensors.torch import save_file; t = {k: v.clone().contiguous() for f "   \
    "in sorted(glob.glob(\"" pattern "\")) for k, v in torch.load(f, map_location=\"cpu\", "                           \
    "weights_only=True).items()}; save_file(t, \"model.safetensors\", {\"format\": \"pt\"})'"

static const struct {
    const char *pattern, *command; /* run in the folder */
} pickles[] = {
    { "consolidated*.pth", "python3 -m transformers.models.llama.convert_llama_weights_to_hf --input_dir . "
                           "--output_dir NEW_FOLDER (they have Meta's names)" },
    { "pytorch_model*.bin", LOAD_ALL("pytorch_model*.bin") },
    { "pytorch_model.bin.index.json", LOAD_ALL("pytorch_model*.bin") },
    { "*.pt", LOAD_ALL("*.pt") },
    { "*.pth", LOAD_ALL("*.pth") },
    { "*.ckpt", LOAD_ALL("*.ckpt") },
    { "*.pkl", LOAD_ALL("*.pkl") },
};

#define PICKLES (sizeof(pickles) / sizeof(pickles[0]))

static size_t kind_of(const char *name)
{
    size_t i = 0;
    while (i < PICKLES && fnmatch(pickles[i].pattern, name, 0) != 0) {
        i++;
    }
    return i;
}

enum err pickle_find(const char *folder, char **name)
{
    *name = NULL;
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return FAIL(ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    }
    enum err err = OK;
    for (struct dirent *e = readdir(dir); e != NULL && err == OK; e = readdir(dir)) {
        if (kind_of(e->d_name) < PICKLES && (*name == NULL || strcmp(e->d_name, *name) < 0)) {
            free(*name);
            err = mem_copy_string(name, e->d_name, strlen(e->d_name));
        }
    }
    closedir(dir);
    return err;
}

enum err pickle_refuse(const char *folder)
{
    char *name;
    TRY(pickle_find(folder, &name));
    if (name == NULL) {
        return OK;
    }
    enum err err = FAIL(ERR_DATA, "%s: the weights are a pickle (%.200s), which can run any program when it is read "
                        "and is refused | convert it, in that folder: %s", folder, name,
                        pickles[kind_of(name)].command);
    free(name);
    return err;
}
