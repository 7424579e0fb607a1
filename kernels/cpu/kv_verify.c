/* kv_verify.c: the tags that the step's sequences expect against the pages' own. Another thread (a copy that ends) may
 * write a tag meanwhile: each is read once, as a whole. */
#include "cpu.h"
#include "kv.h"

static bool all_own(const pl_kv *kv, const pl_kv_seq *s)
{
    uint64_t differ = 0;
    for (int32_t i = 0; i < s->n_pages; i++)
        differ |= __atomic_load_n(&kv->tags.tag[s->page[i]], __ATOMIC_RELAXED) ^ s->tag[i];
    return differ == 0;
}

int pl_cpu_kv_verify(pl_stream *s, pl_tensor *bad, pl_kv *kv, pl_err *err)
{
    (void)s;
    if (bad->dtype != PL_I32 || bad->dim[0] != kv->n_spans)
        return pl_fail(err, PL_ESHAPE, "kv_verify: bad has %lld flags, want i32 for the step's %d spans",
                       (long long)bad->dim[0], kv->n_spans);
    int32_t *flag = bad->data; /* [n_spans] */
    for (int32_t i = 0; i < kv->n_spans; i++)
        if (!all_own(kv, &kv->seq[kv->span[i].seq])) flag[i] = 1;
    return PL_OK;
}
