/* Why this exists: everything that passes over all parameters or their gradients once - the optimizer, the exact
 * norm, the hash, initialisation. All of it is limited by memory, so each function makes one pass and divides it.
 *
 * Invariants: elementwise results and integer sums only, so the division over threads cannot change a bit. */
#include "kern/param_leaf.h"

#include "base/rng.h"

const struct param_leaves *const param_leaves_of[ISA_COUNT] = KERN_TABLES(param_leaves);

#define PARAM_GRAIN 8192u /* elements: the eight pages of each array of a task are worth waking a thread */
#define INIT_GRAIN 256u   /* elements: some 10 us of random numbers */

void kern_grad_square_sum(struct kern *k, uint64_t n, const int64_t *grad, struct fixed_wide *sum, bool *overflow)
{
    POOL_SPAN(k->pool, "gradient norm", n, 0, 0);
    struct fixed_wide total = { { 0 } };
    struct square_job job = { grad, &total, overflow };
    split_run(k, k->param->grad_square_sum, &job, n, PARAM_GRAIN);
    fixed_wide_carry(&total); /* the limbs, not only the value, are the same for every division */
    *sum = total;
}

static struct box box_of(const struct box_map *map, uint64_t begin)
{
    BUG_IF(map->cols == 0 || map->cols > map->ld);
    struct box box = { *map, begin };
    if (map->cols == map->ld) {
        box.map.cols = UINT64_MAX;
    }
    return box;
}

void kern_adamw(struct kern *k, uint64_t n, const struct adamw *a, float *p, float *m, float *v, int64_t *grad,
                const struct box_map *map, uint64_t begin, uint64_t *hash)
{
    POOL_SPAN(k->pool, "adamw", n, 0, 0);
    uint64_t total = 0;
    struct adamw_job job = { a, p, m, v, grad, box_of(map, begin), &total };
    split_run(k, k->param->adamw, &job, n, PARAM_GRAIN);
    *hash = total;
}

uint64_t kern_hash(struct kern *k, uint64_t n, const float *p, const struct box_map *map, uint64_t begin)
{
    POOL_SPAN(k->pool, "hash", n, 0, 0);
    uint64_t total = 0;
    struct hash_job job = { p, box_of(map, begin), &total };
    split_run(k, k->param->hash, &job, n, PARAM_GRAIN);
    return total;
}

/* An integer is two elements of 32 bits beside each other: the box of twice the columns. */
uint64_t kern_hash_i64(struct kern *k, uint64_t n, const int64_t *p, const struct box_map *map, uint64_t begin)
{
    POOL_SPAN(k->pool, "hash", n, 0, 0);
    const struct box_map words = { 2 * map->first, 2 * map->cols, 2 * map->ld };
    return kern_hash(k, 2 * n, (const float *)(const void *)p, &words, 2 * begin);
}

/* Neither a leaf nor divided over the pool: additions at the speed of memory, by whatever thread calls. */
void kern_add_i64(uint64_t n, const int64_t *from, int64_t *to)
{
    for (uint64_t i = 0; i < n; i++) {
        to[i] = (int64_t)((uint64_t)to[i] + (uint64_t)from[i]);
    }
}

/* By whatever thread calls, too. Factors of neighbours are unrelated: opposite errors side by side do not cancel. */
uint64_t kern_checksum_i64(uint64_t n, const int64_t *p, uint64_t first)
{
    uint64_t sum = 0, key = first * 0x9e3779b97f4a7c15u;
    for (uint64_t i = 0; i < n; i++) {
        key += 0x9e3779b97f4a7c15u;
        sum += (uint64_t)p[i] * ((key ^ key >> 32) | 1u);
    }
    return sum;
}

void kern_fill(struct kern *k, uint64_t n, float *p, float value)
{
    POOL_SPAN(k->pool, "fill", n, 0, 0);
    struct fill_job job = { p, value };
    split_run(k, k->param->fill, &job, n, PARAM_GRAIN);
}

void kern_grad_to_float(struct kern *k, uint64_t n, const int64_t *grad, double factor, float *y)
{
    struct grad_float_job job = { grad, factor, y };
    split_run(k, k->param->grad_to_float, &job, n, PARAM_GRAIN);
}

/* Not a leaf: rng_normal4 is written in plain double operations, the same bits wherever it is compiled. */
static void init_run(const struct init_job *j, const struct box_run *run)
{
    for (uint64_t i = run->begin; i < run->end;) {
        uint64_t index = run->index + (i - run->begin);
        double normal[4];
        rng_normal4(rng_at(j->seed, RNG_INIT, j->tensor_id, index / 4), normal);
        for (uint64_t e = index % 4; e < 4 && i < run->end; e++, i++) {
            j->p[i] = (float)(normal[e] * j->deviation);
        }
    }
}

static void init_normal(const void *job, uint64_t begin, uint64_t end)
{
    const struct init_job *j = job;
    for (struct box_run run = box_first(&j->box, begin, end); run.begin < run.end; box_next(&j->box, end, &run)) {
        init_run(j, &run);
    }
}

void kern_init_normal(struct kern *k, uint64_t n, float *p, uint64_t seed, uint64_t tensor_id,
                      const struct box_map *map, uint64_t begin, double deviation)
{
    POOL_SPAN(k->pool, "init", n, 0, 0);
    struct init_job job = { p, seed, tensor_id, box_of(map, begin), deviation };
    split_run(k, init_normal, &job, n, INIT_GRAIN);
}
