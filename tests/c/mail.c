/* Mail: order, what is full, closed or empty, time limits, a descriptor that tells the truth, and many threads at once: no
 * letter is lost, doubled or damaged, also when the box is closed while they wait. */
#include "base.h"
#include "suite.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pl_err err;

static pl_mail *box(int32_t cap)
{
    pl_mail *m = NULL;
    ck_assert_msg(pl_mail_open(&m, cap, &err) == PL_OK, "%s", err.msg);
    return m;
}

static int put(pl_mail *m, int64_t id, const char *text)
{
    const pl_letter l = {.id = id, .kind = 3, .code = 7, .n = (int64_t)strlen(text), .data = (char *)text};
    return pl_mail_put(m, &l, 0, &err);
}

static bool readable(const pl_mail *m)
{
    struct pollfd p = {.fd = pl_mail_fd(m), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

START_TEST(one_thread)
{
    pl_mail *m = box(3);
    pl_letter l;
    ck_assert(!readable(m));
    ck_assert_int_eq(pl_mail_take(m, &l, 0, &err), 0);
    for (int round = 0; round < 5; round++) { /* the ring goes round */
        ck_assert_int_eq(put(m, 1, "one"), PL_OK);
        ck_assert_int_eq(put(m, 2, ""), PL_OK);
        ck_assert(readable(m));
        ck_assert_int_eq(pl_mail_take(m, &l, 0, &err), 1);
        ck_assert(l.id == 1 && l.kind == 3 && l.code == 7 && l.n == 3);
        ck_assert_str_eq(l.data, "one");
        pl_letter_free(&l);
        ck_assert_ptr_null(l.data);
        ck_assert_int_eq(pl_mail_take(m, &l, 1, &err), 1);
        ck_assert(l.id == 2 && l.n == 0);
        ck_assert_str_eq(l.data, "");
        pl_letter_free(&l);
        ck_assert(!readable(m));
    }
    for (int i = 0; i < 3; i++) ck_assert_int_eq(put(m, i, "x"), PL_OK);
    ck_assert_int_eq(put(m, 3, "x"), PL_EFULL);
    ck_assert_str_eq(err.msg, "mail: the box holds 3 letters");
    const double start = pl_now_s();
    ck_assert_int_eq(pl_mail_put(m, &(pl_letter){.id = 3}, 0.05, &err), PL_EFULL);
    ck_assert(pl_now_s() - start >= 0.05);
    for (int i = 0; i < 200000; i++) /* the time is over between any two looks at the clock */
        ck_assert_int_eq(pl_mail_put(m, &(pl_letter){.id = 3}, 1e-9 * (i % 2000), &err), PL_EFULL);
    ck_assert_int_eq(pl_mail_drop(m, 1), 1);
    ck_assert_int_eq(pl_mail_drop(m, 1), 0);
    ck_assert_int_eq(put(m, 0, "y"), PL_OK);
    ck_assert_int_eq(pl_mail_drop(m, 0), 2);
    pl_mail_close(m);
    ck_assert_int_eq(put(m, 3, "x"), PL_ECLOSED);
    ck_assert_int_eq(pl_mail_take(m, &l, 0, &err), 1); /* what is there can be taken */
    ck_assert_int_eq(l.id, 2);
    pl_letter_free(&l);
    ck_assert(readable(m));
    ck_assert_int_eq(pl_mail_take(m, &l, 100, &err), PL_ECLOSED);
    ck_assert_str_eq(err.msg, "mail: the box is closed");
    pl_mail_free(m);
    /* left in the box: freed with it */
    m = box(2);
    ck_assert_int_eq(put(m, 1, "left"), PL_OK);
    pl_mail_free(m);
    pl_mail_free(NULL);
    pl_letter_free(NULL);
    ck_assert_int_eq(pl_mail_open(&m, 0, &err), PL_EARG);
    m = box(1);
    ck_assert_int_eq(pl_mail_put(m, &(pl_letter){.n = -1}, 0, &err), PL_EARG);
    ck_assert_int_eq(pl_mail_put(m, &(pl_letter){.n = 1}, 0, &err), PL_EARG);
    pl_mail_free(m);
}
END_TEST

enum { SENDERS = 5, TAKERS = 4, EACH = 4000 };
typedef struct crowd {
    pl_mail *m;
    int32_t who;
    uint8_t *seen;         /* [SENDERS * EACH] how often each letter came */
    int64_t last[SENDERS]; /* of each sender, as this taker saw them */
    int n, refused;
} crowd;

static void *send_many(void *arg)
{
    crowd *c = arg;
    for (int64_t i = 0; i < EACH; i++) {
        const int64_t id = c->who * EACH + i;
        char text[40];
        const int n = snprintf(text, sizeof text, "%lld", (long long)id) * (i % 3 != 0);
        const pl_letter l = {.id = id, .n = n, .data = text};
        int rc = pl_mail_put(c->m, &l, 0, NULL);
        if (rc == PL_EFULL) rc = pl_mail_put(c->m, &l, 60, NULL);
        if (rc == PL_ECLOSED) break;
        if (rc < 0) abort();
        c->n++;
    }
    return NULL;
}

static void *take_many(void *arg)
{
    crowd *c = arg;
    pl_letter l;
    for (int rc; (rc = pl_mail_take(c->m, &l, c->who % 2 ? 0.001 : 60, NULL)) >= 0;) {
        if (rc == 0) continue;
        const int64_t from = l.id / EACH, i = l.id % EACH;
        if (i % 3 ? strtoll(l.data, NULL, 10) != l.id : l.n != 0) abort();
        if (c->n && c->last[from] >= i) abort(); /* of one sender they come in order */
        c->last[from] = i;
        __atomic_add_fetch(&c->seen[l.id], 1, __ATOMIC_RELAXED);
        c->n++;
        pl_letter_free(&l);
    }
    return NULL;
}

/* cap letters at a time; close_early: the box is closed while senders and takers are at work. */
static void run(int32_t cap, bool close_early)
{
    pl_mail *m = box(cap);
    uint8_t *seen = calloc(SENDERS * EACH, 1);
    crowd s[SENDERS], t[TAKERS];
    pthread_t send[SENDERS], take[TAKERS];
    for (int i = 0; i < TAKERS; i++) {
        t[i] = (crowd){.m = m, .who = i, .seen = seen};
        for (int k = 0; k < SENDERS; k++) t[i].last[k] = -1;
        ck_assert_int_eq(pthread_create(&take[i], NULL, take_many, &t[i]), 0);
    }
    for (int i = 0; i < SENDERS; i++) {
        s[i] = (crowd){.m = m, .who = i};
        ck_assert_int_eq(pthread_create(&send[i], NULL, send_many, &s[i]), 0);
    }
    if (close_early) {
        struct pollfd none;
        poll(&none, 0, 5);
        pl_mail_close(m);
    }
    int sent = 0, taken = 0;
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(send[i], NULL);
        sent += s[i].n;
    }
    pl_mail_close(m);
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(take[i], NULL);
        taken += t[i].n;
    }
    ck_assert_int_eq(sent, taken);
    if (!close_early) ck_assert_int_eq(sent, SENDERS * EACH);
    for (int i = 0; i < SENDERS; i++)
        for (int k = 0; k < EACH; k++) ck_assert_int_eq(seen[i * EACH + k], k < s[i].n);
    free(seen);
    pl_mail_free(m);
}

START_TEST(many_threads)
{
    run(1, false);
    run(7, false);
    run(1000, false);
}
END_TEST

START_TEST(closed_while_they_work)
{
    for (int i = 0; i < 10; i++) run(1 + i * i, true);
}
END_TEST

static void *wait_long(void *arg)
{
    pl_letter l;
    return pl_mail_take(arg, &l, 1e9, NULL) == PL_ECLOSED ? arg : NULL;
}

static void *wait_for_room(void *arg)
{
    return pl_mail_put(arg, &(pl_letter){.id = 2}, 1e9, NULL) == PL_ECLOSED ? arg : NULL;
}

START_TEST(closed_while_they_wait)
{
    struct pollfd none;
    for (int full = 0; full <= 1; full++) {
        pl_mail *m = box(1);
        pthread_t th[3];
        if (full) ck_assert_int_eq(put(m, 1, "x"), PL_OK);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_create(&th[i], NULL, full ? wait_for_room : wait_long, m), 0);
        poll(&none, 0, 20);
        pl_mail_close(m);
        for (int i = 0; i < 3; i++) {
            void *got = NULL;
            pthread_join(th[i], &got);
            ck_assert_ptr_eq(got, m);
        }
        pl_mail_free(m);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("mail");
    TCase *c = tcase_create("mail");
    tcase_add_test(c, one_thread);
    tcase_add_test(c, many_threads);
    tcase_add_test(c, closed_while_they_work);
    tcase_add_test(c, closed_while_they_wait);
    suite_add_tcase(s, c);
    return run_suite(s);
}
