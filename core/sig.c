/* sig.c: unifies the tensors of an op with the letters of its signature line. */
#include "sig.h"
#include <ctype.h>
#include <stdio.h>

enum { MAX_TENSORS = 12, MAX_NAME = 16 };

typedef struct part { /* "w[N,K]?" */
    char name[MAX_NAME];
    const char *dims; /* after the bracket */
    bool optional, is_out;
} part;

typedef struct binding {
    int64_t size[26];
    const char *by[26];
    int64_t lead[PL_MAX_DIMS]; /* what `...` stands for */
    int32_t n_lead;
    const char *lead_by;
} binding;

/* Signatures are ours (the generator checks them), so a bad one is a broken invariant. */
static int parse(const char *sig, part *p)
{
    bool out = strchr(sig, '=') != NULL;
    int n = 0;
    for (const char *c = sig; *c;) {
        if (*c == '=') out = false;
        if (!isalpha((unsigned char)*c)) {
            c++;
            continue;
        }
        PL_ASSERT(n < MAX_TENSORS);
        int k = 0;
        for (; *c != '['; c++)
            if (k < MAX_NAME - 1) p[n].name[k++] = *c;
        p[n].name[k] = 0;
        p[n].dims = ++c;
        while (*c != ']') c++;
        p[n].optional = *++c == '?';
        p[n++].is_out = out;
    }
    return n;
}

static int bind_lead(binding *b, const part *p, const pl_tensor *t, int32_t n, const char *op, const char *got,
                     const char *sig, pl_err *err)
{
    if (!b->lead_by) {
        b->lead_by = p->name;
        b->n_lead = n;
        memcpy(b->lead, t->dim, sizeof *t->dim * (size_t)n);
        return PL_OK;
    }
    bool same = n == b->n_lead;
    for (int32_t i = 0; same && i < n; i++) same = b->lead[i] == t->dim[i];
    if (same) return PL_OK;
    return pl_fail(err, PL_ESHAPE, "%s: %s is %s, whose leading dims are not those of %s (%s)", op, p->name, got,
                   b->lead_by, sig);
}

static int bind(binding *b, const part *p, const pl_tensor *t, const char *op, const char *sig, pl_err *err)
{
    char got[96];
    pl_tensor_shape_text(t, got, sizeof got);
    const bool lead = p->dims[0] == '.';
    int32_t want = 0;
    for (const char *c = p->dims; *c != ']'; c++) want += isalpha((unsigned char)*c) != 0;
    if (lead ? t->ndim <= want : t->ndim != want)
        return pl_fail(err, PL_ESHAPE, "%s: %s is %s, want %d dimensions%s (%s)", op, p->name, got, want + lead,
                       lead ? " or more" : "", sig);
    int32_t d = t->ndim - want;
    if (lead) PL_TRY(bind_lead(b, p, t, d, op, got, sig, err));
    for (const char *c = p->dims; *c != ']'; c++) {
        if (!isalpha((unsigned char)*c)) continue;
        const int i = *c - 'A';
        PL_ASSERT(i >= 0 && i < 26);
        if (!b->by[i]) {
            b->by[i] = p->name;
            b->size[i] = t->dim[d];
        } else if (b->size[i] != t->dim[d]) {
            return pl_fail(err, PL_ESHAPE, "%s: %s is %s but %c = %lld from %s (%s)", op, p->name, got, *c,
                           (long long)b->size[i], b->by[i], sig);
        }
        d++;
    }
    return PL_OK;
}

int pl_sig_check(const char *op, const char *sig, const pl_tensor *const *t, int n, pl_err *err)
{
    part p[MAX_TENSORS];
    binding b = {0};
    PL_ASSERT(parse(sig, p) == n);
    for (int outs = 0; outs <= 1; outs++)
        for (int i = 0; i < n; i++) {
            if (p[i].is_out != (outs == 1) || (!t[i] && p[i].optional)) continue;
            if (!t[i] || !t[i]->data) return pl_fail(err, PL_EARG, "%s: %s is missing (%s)", op, p[i].name, sig);
            if (t[i]->ndim > 1 && t[i]->layout == PL_ROWS && t[i]->dim[t[i]->ndim - 1] > 1 &&
                t[i]->stride[t[i]->ndim - 1] != 1)
                return pl_fail(err, PL_ESHAPE, "%s: the last axis of %s is not dense, copy it first", op, p[i].name);
            PL_TRY(bind(&b, &p[i], t[i], op, sig, err));
        }
    return PL_OK;
}
