/* Coordinates, ranges and context chunks by exhaustion; pipelines by playing the timetables of all stages. */
#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

#include "part/layout.h"

/* ---- ranks ---- */

static void ranks_and_coordinates_map_one_to_one(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 5 * 5 * 5 * 5; i++) {
        const struct layout l = { i % 5 + 1, i / 5 % 5 + 1, i / 25 % 5 + 1, i / 125 + 1 };
        const uint32_t world = l.pp * l.dp * l.cp * l.tp;
        assert_int_equal(layout_world(&l), world);
        for (uint32_t rank = 0; rank < world; rank++) {
            const struct coord c = layout_coord(&l, rank);
            assert_true(c.pp < l.pp && c.dp < l.dp && c.cp < l.cp && c.tp < l.tp);
            assert_int_equal(layout_rank(&l, &c), rank);
        }
    }
}

static void neighbours_are_tensor_parallel_then_context_then_data_then_stages(void **state)
{
    (void)state;
    const struct layout l = { .pp = 2, .dp = 3, .cp = 2, .tp = 4 };
    static const struct coord ranks[] = {
        [0] = { 0, 0, 0, 0 }, [1] = { 0, 0, 0, 1 }, [4] = { 0, 0, 1, 0 }, [8] = { 0, 1, 0, 0 }, [24] = { 1, 0, 0, 0 },
        [47] = { 1, 2, 1, 3 },
    };
    static const uint32_t known[] = { 0, 1, 4, 8, 24, 47 };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const struct coord c = layout_coord(&l, known[i]);
        assert_memory_equal(&c, &ranks[known[i]], sizeof(c));
    }
}

/* ---- ranges ---- */

static void parts_cover_in_order_and_differ_by_one(void **state)
{
    (void)state;
    for (uint64_t n = 0; n <= 200; n++) {
        for (uint32_t parts = 1; parts <= 17; parts++) {
            uint64_t next = 0, last = UINT64_MAX;
            for (uint32_t i = 0; i < parts; i++) {
                struct order_range r = part_range(n, parts, i);
                uint64_t length = r.hi - r.lo;
                assert_true(r.lo == next && length <= last && length >= n / parts && length <= n / parts + 1);
                if (n % parts == 0) {
                    struct order_range s = order_segment(n, parts, i);
                    assert_memory_equal(&r, &s, sizeof(r));
                }
                next = r.hi;
                last = length;
            }
            assert_int_equal(next, n);
        }
    }
    struct order_range last = part_range(UINT64_MAX, UINT32_MAX, UINT32_MAX - 1);
    assert_true(last.hi == UINT64_MAX && last.hi - last.lo == UINT64_MAX / UINT32_MAX);
}

static void aligned_parts_have_whole_blocks(void **state)
{
    (void)state;
    for (uint64_t n = 0; n <= 100; n++) {
        for (uint64_t align = 1; align <= 12; align++) {
            for (uint32_t parts = 1; parts <= 9; parts++) {
                uint64_t next = 0, blocks = (n + align - 1) / align;
                for (uint32_t i = 0; i < parts; i++) {
                    struct order_range r = part_range_aligned(n, align, parts, i), b = part_range(blocks, parts, i);
                    assert_true(r.lo == next && r.hi >= r.lo && (r.hi % align == 0 || r.hi == n));
                    assert_int_equal((r.hi - r.lo + align - 1) / align, b.hi - b.lo);
                    next = r.hi;
                }
                assert_int_equal(next, n);
            }
        }
    }
    assert_true(part_range_aligned(UINT64_MAX, 1 << 20, 3, 2).hi == UINT64_MAX);
}

/* ---- context ---- */

#define POSITIONS_MAX 16384

/* Marks the positions of a rank's chunks; returns its causal work. */
static uint64_t hold_chunks(uint64_t length, uint64_t unit, uint32_t cp, uint32_t rank, uint8_t *held)
{
    uint32_t chunks = context_chunks(length, unit, cp);
    uint64_t work = 0, from = 0;
    for (uint32_t j = 0; j < chunks; j++) {
        struct order_range r = context_chunk(length, unit, cp, rank, j);
        assert_true(r.lo >= from && r.hi <= length && (r.hi - r.lo) * chunks * cp == length);
        assert_true(cp == 1 || (r.lo % unit == 0 && r.hi % unit == 0));
        for (uint64_t t = r.lo; t < r.hi; t++) {
            held[t]++;
            work += t + 1;
        }
        from = r.hi;
    }
    return work;
}

static void chunks_hold_every_position_once_and_balance_causal_work(void **state)
{
    (void)state;
    static const uint64_t units[] = { 1, 2, 3, 16, 255, 256, 512 };
    static uint8_t held[POSITIONS_MAX];
    uint32_t balanced = 0;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        for (uint32_t cp = 1; cp <= 8; cp++) {
            for (uint64_t n = 1; n <= 13 && n * cp * units[i] <= POSITIONS_MAX; n++) {
                uint64_t length = n * cp * units[i], least = UINT64_MAX, most = 0;
                assert_true(context_fits(length, units[i], cp));
                memset(held, 0, sizeof(held));
                for (uint32_t rank = 0; rank < cp; rank++) {
                    uint64_t work = hold_chunks(length, units[i], cp, rank, held);
                    least = work < least ? work : least;
                    most = work > most ? work : most;
                }
                for (uint64_t t = 0; t < length; t++) {
                    assert_int_equal(held[t], 1);
                }
                uint32_t chunks = cp == 1 ? 1 : n % 2 == 0 ? 2 : (uint32_t)n;
                assert_int_equal(context_chunks(length, units[i], cp), chunks);
                assert_true(chunks % 2 == 0 ? most == least : most - least <= (cp - 1) * units[i] * units[i]);
                balanced += chunks % 2 == 0;
            }
        }
    }
    assert_true(balanced > 100);
}

static void chunks_are_dealt_in_a_zigzag(void **state)
{
    (void)state;
    static const uint64_t first[3][3] = { { 0, 50, 60 }, { 10, 40, 70 }, { 20, 30, 80 } }; /* 9 units, 3 ranks */
    for (uint32_t rank = 0; rank < 3; rank++) {
        for (uint32_t j = 0; j < 3; j++) {
            assert_int_equal(context_chunk(90, 10, 3, rank, j).lo, first[rank][j]);
        }
    }
    struct order_range late = context_chunk(4096, 256, 2, 0, 1); /* a chunk may have several units */
    assert_true(late.lo == 3072 && late.hi == 4096);
}

static void sequences_that_cut_a_unit_do_not_fit(void **state)
{
    (void)state;
    assert_true(context_fits(1000, 300, 1));
    assert_int_equal(context_chunks(1000, 300, 1), 1);
    assert_int_equal(context_chunk(1000, 300, 1, 0, 0).hi, 1000);
    assert_false(context_fits(1000, 300, 2));
    assert_false(context_fits(1024, 1024, 2));
    assert_false(context_fits(1024 * 3, 1024, 2));
    assert_false(context_fits(1200, 300, 2)); /* 600 cuts the head's unit of 256 tokens */
    assert_true(context_fits(1200, 100, 2));
    assert_false(context_fits(1024, 256, 0) || context_fits(1024, 0, 2) || context_fits(0, 256, 2));
}

/* ---- pipeline: layers ---- */

static void every_layer_is_in_one_chunk(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 8; stages++) {
        for (uint32_t chunks = 1; chunks <= 4; chunks++) {
            struct pipe p = { chunks == 1 ? PIPE_1F1B : PIPE_INTERLEAVED, stages, chunks, 0, NULL };
            for (p.layers = 0; p.layers <= 40; p.layers++) {
                assert_int_equal(pipe_fits(&p), p.layers >= stages * chunks);
                uint64_t next = 0;
                for (uint32_t v = 0; pipe_fits(&p) && v < stages * chunks; v++) {
                    struct order_range r = pipe_layers(&p, v % stages, v / stages);
                    assert_true(r.lo == next && r.hi > r.lo);
                    next = r.hi;
                }
                assert_int_equal(next, pipe_fits(&p) ? p.layers : 0);
            }
        }
    }
}

static void layers_follow_the_given_counts(void **state)
{
    (void)state;
    static const uint64_t counts[] = { 2, 0, 5, 1, 1, 3 };
    struct pipe p = { PIPE_INTERLEAVED, 3, 2, 12, counts };
    assert_true(pipe_fits(&p));
    uint64_t next = 0;
    for (uint32_t v = 0; v < 6; v++) {
        struct order_range r = pipe_layers(&p, v % 3, v / 3);
        assert_true(r.lo == next && r.hi == next + counts[v]);
        next = r.hi;
    }
    p.layers = 11;
    assert_false(pipe_fits(&p));
    p.layers = 13;
    assert_false(pipe_fits(&p));
    static const uint64_t wraps[] = { UINT64_MAX, 13 };
    p = (struct pipe){ PIPE_GPIPE, 2, 1, 12, wraps };
    assert_false(pipe_fits(&p));
}

/* ---- pipeline: the timetables ---- */

#define STAGES_MAX 13
#define CHUNKS_MAX 5
#define MICROS_MAX 40

/* All stages at work: when each forward and backward ended, by virtual stage and micro-batch; 0: not yet. */
struct play {
    struct pipe p;
    uint32_t micros;
    uint64_t forward_cost, backward_cost;
    uint64_t forward[STAGES_MAX * CHUNKS_MAX][MICROS_MAX], backward[STAGES_MAX * CHUNKS_MAX][MICROS_MAX];
    uint64_t at[STAGES_MAX], now[STAGES_MAX]; /* operation and time of each stage */
};

/* Play the next operation of a stage, unless what it waits for has not ended. */
static bool play_next(struct play *w, uint32_t stage)
{
    if (w->at[stage] == pipe_ops(&w->p, w->micros)) {
        return false;
    }
    const struct pipe_op op = pipe_op(&w->p, stage, w->micros, w->at[stage]);
    const uint32_t v = op.chunk * w->p.stages + stage, last = w->p.stages * w->p.chunks - 1, m = op.micro;
    assert_true(op.chunk < w->p.chunks && m < w->micros);
    const uint64_t *needs[2] = { op.forward ? NULL : &w->forward[v][m], NULL };
    if (op.forward && v > 0) {
        needs[1] = &w->forward[v - 1][m];
    } else if (!op.forward && v < last) {
        needs[1] = &w->backward[v + 1][m];
    }
    uint64_t start = w->now[stage];
    for (int i = 0; i < 2; i++) {
        if (needs[i] != NULL && *needs[i] == 0) {
            return false;
        }
        start = needs[i] != NULL && *needs[i] > start ? *needs[i] : start;
    }
    uint64_t *ended = op.forward ? &w->forward[v][m] : &w->backward[v][m];
    assert_int_equal(*ended, 0); /* once only */
    *ended = w->now[stage] = start + (op.forward ? w->forward_cost : w->backward_cost);
    w->at[stage]++;
    return true;
}

/* Play to the end; a deadlock fails. Returns the time it took. */
static uint64_t play(struct play *w, const struct pipe *p, uint32_t micros, uint64_t forward, uint64_t backward)
{
    memset(w, 0, sizeof(*w));
    w->p = *p;
    w->micros = micros;
    w->forward_cost = forward;
    w->backward_cost = backward;
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t stage = 0; stage < p->stages; stage++) {
            while (play_next(w, stage)) {
                moved = true;
            }
        }
    }
    uint64_t end = 0;
    for (uint32_t stage = 0; stage < p->stages; stage++) {
        if (w->at[stage] != pipe_ops(p, micros)) {
            fail_msg("schedule %d, %u stages, %u chunks, %u micro-batches: stage %u waits for ever at %llu",
                     (int)p->schedule, p->stages, p->chunks, micros, stage, (unsigned long long)w->at[stage]);
        }
        end = w->now[stage] > end ? w->now[stage] : end;
    }
    for (uint32_t v = 0; v < p->stages * p->chunks; v++) {
        for (uint32_t m = 0; m < micros; m++) {
            assert_true(w->forward[v][m] != 0 && w->backward[v][m] != 0);
        }
    }
    return end;
}

/* One stage alone: ascending order, sets that are exact and never taken twice. Returns the most in flight at a time. */
static uint32_t walk_stage(const struct pipe *p, uint32_t stage, uint32_t micros)
{
    uint32_t begun[CHUNKS_MAX] = { 0 }, done[CHUNKS_MAX] = { 0 }, sets[CHUNKS_MAX], most[CHUNKS_MAX] = { 0 };
    uint32_t live = 0, live_most = 0;
    bool taken[CHUNKS_MAX][MICROS_MAX + 1] = { 0 };
    for (uint32_t c = 0; c < p->chunks; c++) {
        sets[c] = pipe_sets(p, stage, c, micros);
        assert_in_range(sets[c], 1, micros > 0 ? micros : 1);
    }
    for (uint64_t i = 0; i < pipe_ops(p, micros); i++) {
        const struct pipe_op op = pipe_op(p, stage, micros, i);
        uint32_t *next = op.forward ? &begun[op.chunk] : &done[op.chunk];
        assert_int_equal(op.micro, *next);
        bool *set = &taken[op.chunk][op.micro % sets[op.chunk]];
        assert_int_equal(*set, !op.forward);
        *set = op.forward;
        (*next)++;
        live = op.forward ? live + 1 : live - 1;
        live_most = live > live_most ? live : live_most;
        uint32_t here = begun[op.chunk] - done[op.chunk];
        most[op.chunk] = here > most[op.chunk] ? here : most[op.chunk];
    }
    for (uint32_t c = 0; c < p->chunks; c++) {
        assert_int_equal(sets[c], micros > 0 ? most[c] : 1);
    }
    return live_most;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* What the schedule is known to hold in flight on a stage. */
static void check_memory(const struct pipe *p, uint32_t stage, uint32_t micros)
{
    uint32_t live = walk_stage(p, stage, micros), below = p->stages - stage - 1, known = 0;
    switch (p->schedule) {
    case PIPE_GPIPE: assert_int_equal(live, micros); break;
    case PIPE_1F1B: assert_int_equal(live, smaller(below + 1, micros)); break;
    case PIPE_INTERLEAVED:
        known = smaller(2 * below + (p->chunks - 1) * p->stages + 1, p->chunks * micros);
        assert_in_range(live, micros % p->stages == 0 ? known : 0, known);
        break;
    }
}

/* The bubble is that of the formula where it holds; else it is between that and the bubble of 1F1B, whose forward goes
 * through all chunks of a stage at once. */
static void check_bubble(struct play *w, const struct pipe *p, uint32_t micros)
{
    bool exact = p->schedule != PIPE_INTERLEAVED || micros % p->stages == 0;
    for (uint64_t backward = 1; backward <= 2; backward++) { /* times a forward */
        uint64_t end = play(w, p, micros, 1, backward), work = (1 + backward) * p->chunks * micros;
        double bubble = (double)(end - work) / (double)end, formula = pipe_bubble(p, micros);
        assert_true(exact ? bubble == formula : bubble > formula);
        assert_true(end <= (1 + backward) * p->chunks * (micros + p->stages - 1));
    }
}

static void check_pipe(const struct pipe *p, uint32_t micros)
{
    static struct play w;
    assert_int_equal(pipe_ops(p, micros), 2 * p->chunks * micros);
    for (uint32_t stage = 0; stage < p->stages; stage++) {
        check_memory(p, stage, micros);
    }
    if (micros > 0) {
        check_bubble(&w, p, micros);
    } else {
        assert_int_equal(play(&w, p, 0, 1, 1), 0);
        assert_true(pipe_bubble(p, 0) == (p->stages > 1));
    }
}

static void all_stages_finish_without_deadlock(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 8; stages++) {
        for (uint32_t micros = 0; micros <= 20; micros++) {
            check_pipe(&(struct pipe){ PIPE_GPIPE, stages, 1, 0, NULL }, micros);
            check_pipe(&(struct pipe){ PIPE_1F1B, stages, 1, 0, NULL }, micros);
            for (uint32_t chunks = 2; chunks <= 4; chunks++) {
                check_pipe(&(struct pipe){ PIPE_INTERLEAVED, stages, chunks, 0, NULL }, micros);
            }
        }
    }
    check_pipe(&(struct pipe){ PIPE_1F1B, STAGES_MAX, 1, 0, NULL }, MICROS_MAX);
    check_pipe(&(struct pipe){ PIPE_INTERLEAVED, STAGES_MAX, CHUNKS_MAX, 0, NULL }, MICROS_MAX);
    check_pipe(&(struct pipe){ PIPE_INTERLEAVED, STAGES_MAX, CHUNKS_MAX, 0, NULL }, 3 * STAGES_MAX);
}

/* The timetable of a stage as text: F or B, micro-batch, chunk as a letter. */
static void assert_timetable(const struct pipe *p, uint32_t stage, uint32_t micros, const char *expected)
{
    char text[256] = "";
    size_t used = 0;
    for (uint64_t i = 0; i < pipe_ops(p, micros); i++) {
        const struct pipe_op op = pipe_op(p, stage, micros, i);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%c%u%c", i > 0 ? " " : "", op.forward ? 'F' : 'B',
                                 op.micro, (char)('a' + op.chunk));
        assert_true(used < sizeof(text));
    }
    assert_string_equal(text, expected);
}

static void timetables_are_the_published_ones(void **state)
{
    (void)state;
    const struct pipe gpipe = { PIPE_GPIPE, 3, 1, 0, NULL }, one = { PIPE_1F1B, 3, 1, 0, NULL };
    const struct pipe two = { PIPE_INTERLEAVED, 2, 2, 0, NULL };
    assert_timetable(&gpipe, 1, 3, "F0a F1a F2a B0a B1a B2a");
    assert_timetable(&one, 0, 4, "F0a F1a F2a B0a F3a B1a B2a B3a");
    assert_timetable(&one, 1, 4, "F0a F1a B0a F2a B1a F3a B2a B3a");
    assert_timetable(&one, 2, 4, "F0a B0a F1a B1a F2a B2a F3a B3a");
    assert_timetable(&one, 0, 1, "F0a B0a");
    assert_timetable(&two, 0, 4, "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
    assert_timetable(&two, 1, 4, "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
    /* three: the second group has one micro-batch */
    assert_timetable(&two, 0, 3, "F0a F1a F0b F1b F2a B0b B1b F2b B0a B1a B2b B2a");
    assert_timetable(&two, 1, 3, "F0a F1a F0b B0b F1b B1b F2a B0a B1a F2b B2b B2a");
}

static void timetables_of_many_micro_batches_are_found_at_once(void **state)
{
    (void)state;
    const struct pipe p = { PIPE_INTERLEAVED, 64, 8, 0, NULL };
    const uint32_t micros = 4000000001u; /* one in the last group */
    const struct pipe_op last = pipe_op(&p, 5, micros, pipe_ops(&p, micros) - 1);
    assert_true(!last.forward && last.micro == micros - 1 && last.chunk == 0);
}

/* ---- what is our own fault ---- */

static void bug_gpipe_chunks(void)
{
    (void)pipe_ops(&(struct pipe){ PIPE_GPIPE, 2, 2, 8, NULL }, 4);
}

static void bug_1f1b_chunks(void)
{
    (void)pipe_bubble(&(struct pipe){ PIPE_1F1B, 2, 2, 8, NULL }, 4);
}

static void bug_interleaved_chunk(void)
{
    (void)pipe_op(&(struct pipe){ PIPE_INTERLEAVED, 2, 1, 8, NULL }, 0, 4, 0);
}

static void bug_past_the_timetable(void)
{
    (void)pipe_op(&(struct pipe){ PIPE_1F1B, 2, 1, 8, NULL }, 0, 4, 8);
}

static void bug_too_few_layers(void)
{
    (void)pipe_layers(&(struct pipe){ PIPE_1F1B, 4, 1, 3, NULL }, 0, 0);
}

static void bug_cut_unit(void)
{
    (void)context_chunks(1000, 300, 2);
}

static void bug_world_of_two_to_the_32(void)
{
    (void)layout_world(&(struct layout){ 1 << 16, 1 << 8, 1 << 4, 1 << 4 });
}

static void bug_rank_outside(void)
{
    (void)layout_coord(&(struct layout){ 1, 2, 1, 2 }, 4);
}

static void impossible_questions_are_bugs(void **state)
{
    (void)state;
    static void (*const bugs[])(void) = {
        bug_gpipe_chunks,   bug_1f1b_chunks, bug_interleaved_chunk,      bug_past_the_timetable,
        bug_too_few_layers, bug_cut_unit,    bug_world_of_two_to_the_32, bug_rank_outside,
    };
    for (size_t i = 0; i < sizeof(bugs) / sizeof(bugs[0]); i++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            assert_non_null(freopen("/dev/null", "w", stderr));
            bugs[i]();
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) != 70) {
            fail_msg("bug %zu: exit status %d, expected 70", i, WEXITSTATUS(status));
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ranks_and_coordinates_map_one_to_one),
    cmocka_unit_test(neighbours_are_tensor_parallel_then_context_then_data_then_stages),
    cmocka_unit_test(parts_cover_in_order_and_differ_by_one),
    cmocka_unit_test(aligned_parts_have_whole_blocks),
    cmocka_unit_test(chunks_hold_every_position_once_and_balance_causal_work),
    cmocka_unit_test(chunks_are_dealt_in_a_zigzag),
    cmocka_unit_test(sequences_that_cut_a_unit_do_not_fit),
    cmocka_unit_test(every_layer_is_in_one_chunk),
    cmocka_unit_test(layers_follow_the_given_counts),
    cmocka_unit_test(all_stages_finish_without_deadlock),
    cmocka_unit_test(timetables_are_the_published_ones),
    cmocka_unit_test(timetables_of_many_micro_batches_are_found_at_once),
    cmocka_unit_test(impossible_questions_are_bugs),
};
TEST_MAIN(tests)
