/* What `invar bench` measured, for people and for programs. Not collective. */
#ifndef CMD_BENCH_REPORT_H
#define CMD_BENCH_REPORT_H

#include "bench/suite.h"

/* What is measured: before anything is. */
void bench_print_job(const struct conf *c);
/* The table of a part, when it is there. */
void bench_print(const struct bench_report *r, const struct conf *c, enum bench_part part);
/* Warn when the machine was not ours alone. */
void bench_warn(const struct bench_report *r);
/* Whether bench_write_json may write there: a folder that takes files, and no file of another kind to be replaced. */
MUST_USE enum err bench_check_output(const char *path);
/* Everything as JSON. */
MUST_USE enum err bench_write_json(const struct bench_report *r, const struct conf *c, const char *path);

#endif
