/* digest.c: damage to the contents of pages. A full page never changes again, so that its digest (XXH3, 64 bits) is taken
 * when it fills; a scrub compares a few pages at a time, and who reads a page from elsewhere compares it too. */
#include "kv.h"
#include <xxhash.h>

uint64_t pl_kv_digest(const void *page, int64_t bytes) { return XXH3_64bits(page, (size_t)bytes); }

/* Pages are looked at in host memory; those of a device would need a kernel of their own. */
static bool has_digests(const pl_kv *kv)
{
    return kv->o.check == PL_CHECK_DIGESTS && kv->mem && kv->dev->stream.kind == PL_DEV_CPU;
}

void pl_kv_seal(pl_kv *kv, const pl_kv_seq *s, int64_t from, int64_t to)
{
    if (!has_digests(kv)) return;
    for (int64_t i = from / kv->o.page; i < to / kv->o.page; i++) {
        pl_page *p = &kv->tags.page[s->page[i]];
        p->digest = pl_kv_digest(pl_kv_page(kv, s->page[i]), kv->page_bytes);
        p->has_digest = true;
    }
}

int32_t pl_kv_scrub(pl_kv *kv, int32_t n)
{
    int32_t n_damaged = 0;
    if (!has_digests(kv)) return 0;
    for (int32_t looked = 0, left = kv->tags.n; looked < n && left > 0; left--) {
        const int32_t i = kv->scrub_at;
        const pl_page *p = &kv->tags.page[i];
        kv->scrub_at = i + 1 < kv->tags.n ? i + 1 : 0;
        if (p->state != PL_PAGE_OWNED || !p->has_digest || p->writers) continue;
        looked++;
        if (pl_kv_digest(pl_kv_page(kv, i), kv->page_bytes) == p->digest) continue;
        pl_tags_condemn(&kv->tags, i);
        n_damaged++;
    }
    return n_damaged;
}
