/* toc.c: the table of contents of a checkpoint. Names are kept sorted, not hashed: nothing in a hostile file can
 * make the look-up slow, and both duplicates and overlaps show up as neighbours. */
#include "toc.h"
#include "mem.h"
#include <stdlib.h>

bool pl_is_printable(const char *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (s[i] < 0x20 || s[i] > 0x7e) return false;
    return true;
}

int pl_toc_add(pl_toc *t, const char *name, int64_t n, const pl_toc_entry *e, pl_err *err)
{
    if (n < 1 || n > PL_TOC_NAME_MAX)
        return pl_fail(err, PL_EFORMAT, "tensor %d: a name of %lld bytes, want 1 to %d", t->n, (long long)n,
                       PL_TOC_NAME_MAX);
    if (!pl_is_printable(name, n)) return pl_fail(err, PL_EFORMAT, "tensor %d: its name is not printable ASCII", t->n);
    if (t->n == PL_TOC_MAX) return pl_fail(err, PL_ELIMIT, "more than %d tensors", PL_TOC_MAX);
    void *p = t->e;
    const int rc = pl_mem_grow(&p, &t->cap, t->n + 1, sizeof *t->e, err);
    t->e = p;
    PL_TRY(rc);
    char *copy = strndup(name, (size_t)n);
    if (!copy) return pl_fail(err, PL_ENOMEM, "tensor %d: no memory for its name", t->n);
    t->e[t->n] = *e;
    t->e[t->n++].name = copy;
    return PL_OK;
}

static int name_order(const void *a, const void *b)
{
    return strcmp((*(pl_toc_entry *const *)a)->name, (*(pl_toc_entry *const *)b)->name);
}

static int name_is(const void *name, const void *e) { return strcmp(name, (*(pl_toc_entry *const *)e)->name); }

static int span_order(const void *a, const void *b)
{
    const pl_toc_entry *x = *(pl_toc_entry *const *)a, *y = *(pl_toc_entry *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

int pl_toc_seal(pl_toc *t, const char *what, pl_err *err)
{
    PL_ASSERT(!t->by_name);
    if (!t->n) return PL_OK;
    pl_toc_entry **p = malloc((size_t)t->n * sizeof(pl_toc_entry *));
    if (!p) return pl_fail(err, PL_ENOMEM, "%s: no memory for %d tensors", what, t->n);
    t->by_name = p;

    int32_t n_spans = 0;
    for (int32_t i = 0; i < t->n; i++)
        if (t->e[i].bytes && !t->e[i].join.how) p[n_spans++] = &t->e[i];
    qsort(p, (size_t)n_spans, sizeof(pl_toc_entry *), span_order);
    for (int32_t i = 1; i < n_spans; i++)
        if (p[i]->file == p[i - 1]->file && p[i]->offset < p[i - 1]->offset + p[i - 1]->bytes)
            return pl_fail(err, PL_EFORMAT, "%s: tensor '%.64s': overlaps '%.64s' at offset %lld", what, p[i]->name,
                           p[i - 1]->name, (long long)p[i]->offset);

    for (int32_t i = 0; i < t->n; i++) p[i] = &t->e[i];
    qsort(p, (size_t)t->n, sizeof(pl_toc_entry *), name_order);
    for (int32_t i = 1; i < t->n; i++)
        if (!strcmp(p[i]->name, p[i - 1]->name))
            return pl_fail(err, PL_EFORMAT, "%s: tensor '%.64s': listed twice", what, p[i]->name);
    return PL_OK;
}

int32_t pl_toc_find(const pl_toc *t, const char *name)
{
    if (!t->by_name) return PL_ENAME;
    pl_toc_entry **at = bsearch(name, t->by_name, (size_t)t->n, sizeof(pl_toc_entry *), name_is);
    return at ? (int32_t)(*at - t->e) : PL_ENAME;
}

void pl_toc_clear(pl_toc *t)
{
    for (int32_t i = 0; i < t->n; i++) free(t->e[i].name);
    free(t->e);
    free(t->by_name);
    *t = (pl_toc){0};
}
