/* The linker puts these in place of kern/isa.c's: there is the definition, and what is emulated (on AVX2). */
#include "kern/kern.h"

bool __real_kern_isa_supported(enum isa isa);
bool __wrap_kern_isa_supported(enum isa isa);
enum err __real_kern_choose_isa(enum isa *out);
enum err __wrap_kern_choose_isa(enum isa *out);

bool __wrap_kern_isa_supported(enum isa isa)
{
    bool emulated = isa == ISA_AVX512 || isa == ISA_AVX512BF16;
    return isa == ISA_SCALAR || (emulated && __real_kern_isa_supported(ISA_AVX2));
}

enum err __wrap_kern_choose_isa(enum isa *out)
{
    TRY(__real_kern_choose_isa(out));
    *out = *out == ISA_SCALAR ? ISA_SCALAR : ISA_AVX512BF16;
    return OK;
}
