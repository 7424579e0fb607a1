/* open.c [PLUGIN]: opens a CUDA device as the program does, and prints what came of it: the device, or the one sentence
 * that says what is missing. Also the time of the best of 20 tries: without a driver it must be below a millisecond. */
#include "dev.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    char text[256];
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        pl_err err = {0};
        pl_dev *dev = NULL;
        const pl_dev_opts o = {.kind = PL_DEV_CUDA, .plugin = argc > 1 ? argv[1] : NULL};
        const double t0 = pl_now_s();
        const int rc = pl_dev_open(&dev, &o, &err);
        const double t = pl_now_s() - t0;
        if (t < best) best = t;
        snprintf(text, sizeof text, "%d %s", rc, err.msg);
        if (rc == PL_OK) pl_dev_describe(dev, text, sizeof text);
        pl_dev_close(dev);
    }
    printf("%s (%.0f us%s)\n", text, best * 1e6, best < 1e-3 ? ", quick" : "");
    return 0;
}
