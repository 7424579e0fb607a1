/* Quantised checkpoints: values as reference decoders give them (tests/golden/formats.txt says by whom), bit for bit; and
 * what does not fit together is an error that says what. */
#include "parts.h"
#include "bytes.h"
#include "ckpt.h"
#include "dtype.h"
#include "folder.h"
#include "suite.h"
#include "tensor.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static pl_err err;

static uint64_t digest(const float *y, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < 4 * n; i++) h = (h ^ ((const uint8_t *)y)[i]) * 0x100000001b3u;
    return h;
}

/* A tensor of a checkpoint: format, sizes, and every value. */
static void check_tensor(pl_ckpt *c, const char *name, const char *format, const char *sizes, uint64_t want)
{
    pl_tensor t = {0};
    char got[96] = "";
    ck_assert_msg(pl_ckpt_tensor(c, pl_ckpt_find(c, name), &t, &err) == PL_OK, "%s: %s", name, err.msg);
    ck_assert_str_eq(pl_dtype_name(t.dtype), format);
    for (int i = 0; i < t.ndim; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), i ? "x%d" : "%d", (int)t.dim[i]);
    ck_assert_str_eq(got, sizes);
    ck_assert_msg(pl_ckpt_check_values(&t, &err) == PL_OK, "%s: %s", name, err.msg);
    const int64_t n = pl_tensor_count(&t);
    float *y = malloc((size_t)n * 4);
    ck_assert_int_eq(pl_tensor_get_f32(&t, y, n, &err), PL_OK);
    ck_assert_msg(digest(y, n) == want, "%s: its values differ (first %a)", name, (double)y[0]);
    free(y);
    pl_ckpt_drop(c, pl_ckpt_find(c, name));
    pl_tensor_release(&t);
}

/* Every line of a list: directory, tensor, format, sizes, digest. */
static int check_list(const char *list, const char *root)
{
    char model[64], open[64] = "", name[128], format[16], sizes[64], where[512];
    unsigned long long want;
    int n = 0;
    FILE *f = fopen(list, "r");
    ck_assert_ptr_nonnull(f);
    pl_ckpt *c = NULL;
    while (fscanf(f, "%63s %127s %15s %63s %llx", model, name, format, sizes, &want) == 5) {
        if (strcmp(model, open) != 0) {
            pl_ckpt_close(c);
            c = NULL;
            snprintf(open, sizeof open, "%s", model);
            snprintf(where, sizeof where, "%s/%s", root, model);
            if (access(where, R_OK))
                printf("parts: %s: not here, skipped\n", where);
            else
                ck_assert_msg(pl_ckpt_open(&c, where, &err) == PL_OK, "%s: %s", model, err.msg);
        }
        if (!c) continue;
        if (!n) { /* of what the files hold */
            uint64_t same[2][2] = {{0}};
            for (int i = 0; i < 2; i++) pl_ckpt_digest(c, INT64_MAX, same[i]);
            ck_assert_mem_eq(same[0], same[1], sizeof same[0]);
            ck_assert_uint_ne(same[0][0], 0);
        }
        check_tensor(c, name, format, sizes, want);
        n++;
    }
    ck_assert(feof(f));
    fclose(f);
    pl_ckpt_close(c);
    return n;
}

START_TEST(golden)
{
    ck_assert_int_eq(check_list(PL_SOURCE_DIR "/tests/golden/formats.txt", PL_SOURCE_DIR "/tests/data/quantised"), 23);
    const int n = check_list(PL_SOURCE_DIR "/tests/golden/formats_shared.txt", PL_SOURCE_DIR "/../shared/models");
    printf("parts: %d tensors of shared models\n", n);
}
END_TEST

/* Made checkpoints --------------------------------------------------------------------------------------------- */

static void setup(void)
{
    folder_make();
    err = (pl_err){0};
}

/* A tensor as "NAME DTYPE SIZES BYTES": BYTES in hex, repeated to fill it. */
static void add_tensor(bytes *head, bytes *data, const char *spec)
{
    char name[64], dtype[16], sizes[32], hex[40] = "", text[256];
    ck_assert_int_ge(sscanf(spec, "%63s %15s %31s %39s", name, dtype, sizes, hex), 3);
    int64_t n = 1;
    for (const char *p = sizes; *p;) {
        char *end;
        n *= strtoll(p, &end, 10);
        p = *end ? end + 1 : end;
    }
    n *= strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strstr(dtype, "16") ? 2 : 1;
    snprintf(text, sizeof text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}",
             head->n > 1 ? "," : "", name, dtype, sizes, (long long)data->n, (long long)(data->n + n));
    put_text(head, text);
    const size_t step = strlen(hex) / 2;
    for (int64_t i = 0; i < n; i++) {
        unsigned v = 0x11;
        if (step) sscanf(hex + 2 * ((size_t)i % step), "%2x", &v);
        put_u8(data, (uint8_t)v);
    }
}

/* Opens a checkpoint of this config and these tensors, "; " between them, and takes the tensor "m.weight" and looks at its
 * values: the first failure. A '@' in front of a config makes it hf_quant_config.json. */
static int try_it(const char *config, const char *tensors)
{
    bytes head = {0}, data = {0}, file = {0};
    char spec[128];
    put_text(&head, "{");
    for (const char *p = tensors; *p;) {
        const size_t n = strcspn(p, ";");
        snprintf(spec, sizeof spec, "%.*s", (int)n, p);
        add_tensor(&head, &data, spec);
        p += n + (p[n] == ';');
    }
    put_text(&head, "}");
    put_u64(&file, (uint64_t)head.n);
    for (int64_t i = 0; i < head.n; i++) put_u8(&file, head.p[i]);
    for (int64_t i = 0; i < data.n; i++) put_u8(&file, data.p[i]);
    write_file("model.safetensors", file.p, (size_t)file.n);
    unlink(in_dir("hf_quant_config.json"));
    write_file("config.json", *config == '@' ? "{}" : config, *config == '@' ? 2 : strlen(config));
    if (*config == '@') write_file("hf_quant_config.json", config + 1, strlen(config) - 1);
    bytes_free(&head);
    bytes_free(&data);
    bytes_free(&file);
    err = (pl_err){0};
    pl_ckpt *c = NULL;
    pl_tensor t = {0};
    int rc = pl_ckpt_open(&c, dir, &err);
    if (rc == PL_OK) rc = pl_ckpt_tensor(c, pl_ckpt_find(c, "m.weight"), &t, &err);
    if (rc == PL_OK) rc = pl_ckpt_check_values(&t, &err);
    pl_tensor_release(&t);
    pl_ckpt_close(c);
    return rc;
}

#define Q(s) "{\"quantization_config\":{" s "}}"
#define CT(weights)                                                                                               \
    Q("'quant_method':'compressed-tensors','format':'pack-quantized','ignore':['lm_head','re:.*router'],'config_" \
      "groups':{'a':{'targets':['Linear'],'weights':{" weights "}}}")
#define INT4 "'num_bits':4,'type':'int','symmetric':true,'strategy':'group','group_size':32"
#define FP8 Q("'quant_method':'fp8','weight_block_size':[128,128],'modules_to_not_convert':['gate','a.*.b']")
#define GPTQ Q("'quant_method':'gptq','bits':4,'group_size':32")
#define NV Q("'quant_method':'modelopt','quant_algo':'NVFP4','ignore':['lm_head*']")
#define PACKED \
    "m.weight_packed I32 2,8;m.weight_scale BF16 2,2 803c;m.weight_shape I64 2 0200000000000000400000000000000000"
#define BLOCKS "m.weight F8_E4M3 2,200;m.weight_scale_inv F32 1,2 0000003d"
#define QWEIGHT "m.qweight I32 8,8;m.scales F16 2,8 0030;m.qzeros I32 2,1 77"
#define FP4 "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_scale_2 F32 1 0000003d"

/* "'" stands for '"' in configs */
static const struct {
    const char *config, *tensors;
    int code;
    const char *text;
} row[] = {
    /* they are right as they stand */
    {CT(INT4), PACKED, PL_OK, ""},
    {FP8, BLOCKS, PL_OK, ""},
    {GPTQ, QWEIGHT, PL_OK, ""},
    {NV, FP4, PL_OK, ""},
    {"@{'producer':{'name':'modelopt'},'quantization':{'quant_algo':'NVFP4','exclude_modules':['lm_head']}}", FP4,
     PL_OK, ""},
    {"{}", "m.weight BF16 2,2", PL_OK, ""},
    /* configs */
    {Q("'quant_method':'bitsandbytes'"), PACKED, PL_EFORMAT,
     "quantization_config.quant_method: 'bitsandbytes', want awq, compressed-tensors"},
    {Q("'bits':4"), PACKED, PL_EFORMAT, "quantization_config.quant_method: ''"},
    {Q("'quant_method':4"), PACKED, PL_EDTYPE, "quantization_config.quant_method': not a string"},
    {Q("'quant_method':'fp8','fmt':'e5m2'"), BLOCKS, PL_EFORMAT, "quantization_config.fmt: 'e5m2', want e4m3"},
    {Q("'quant_method':'fp8','weight_block_size':[128]"), BLOCKS, PL_EFORMAT, "weight_block_size: 1, want two sizes"},
    {Q("'quant_method':'fp8','weight_block_size':[0,128]"), BLOCKS, PL_EFORMAT, "weight_block_size: 0, want a size"},
    {Q("'quant_method':'gptq','bits':3,'group_size':32"), QWEIGHT, PL_EFORMAT, "quantization_config.bits: 3, want 4"},
    {Q("'quant_method':'gptq','bits':4,'group_size':32,'checkpoint_format':'marlin'"), QWEIGHT, PL_EFORMAT,
     "checkpoint_format: 'marlin', want gptq or gptq_v2"},
    {Q("'quant_method':'gptq','bits':4"), QWEIGHT, PL_EFORMAT, "group_size: 0, want a size"},
    {Q("'quant_method':'awq','bits':4,'group_size':32,'version':'gemv'"), QWEIGHT, PL_EFORMAT,
     "version: 'gemv', want gemm"},
    {Q("'quant_method':'modelopt','quant_algo':'W4A8_AWQ'"), FP4, PL_EFORMAT,
     "quant_algo: 'W4A8_AWQ', want FP8 or NVFP4"},
    {"@{'quantization':{'quant_algo':'INT4_AWQ'}}", FP4, PL_EFORMAT,
     "hf_quant_config.quantization.quant_algo: 'INT4_AWQ'"},
    {Q("'quant_method':'compressed-tensors','format':'marlin-24'"), PACKED, PL_EFORMAT, "format: 'marlin-24'"},
    {Q("'quant_method':'compressed-tensors','format':'pack-quantized'"), PACKED, PL_EFORMAT, "config_groups: none"},
    {Q("'quant_method':'compressed-tensors','sparsity_config':{'format':'sparse-24-bitmask'}"), PACKED, PL_EFORMAT,
     "sparsity_config.format: 'sparse-24-bitmask', want dense"},
    {Q("'quant_method':'compressed-tensors','transform_config':{'config_groups':{'u':{'type':'hadamard'}}}"), PACKED,
     PL_EFORMAT, "rotated weights, want none"},
    {CT("'num_bits':3"), PACKED, PL_EFORMAT, "config_groups.a.weights.num_bits: 3, want 4 or 8"},
    {CT("'num_bits':8,'type':'int'"), PACKED, PL_EFORMAT, "weights.type: 'int', want float with 8 bits"},
    {CT("'num_bits':4,'type':'int','strategy':'block'"), PACKED, PL_EFORMAT, "weights.strategy: 'block'"},
    {CT("'num_bits':4,'type':'int','strategy':'group'"), PACKED, PL_EFORMAT, "weights.group_size: 0, want a size"},
    {CT("'num_bits':4,'type':'int','strategy':'group','group_size':32,'actorder':'column'"), PACKED, PL_EFORMAT,
     "weights.actorder: 'column'"},
    {CT("'num_bits':4,'type':'float','strategy':'group','group_size':64"), PACKED, PL_EFORMAT,
     "weights.group_size: 64, want 16 or 32"},
    {Q("'quant_method':'compressed-tensors','ignore':['re:('],"
       "'config_groups':{'a':{'targets':['Linear'],'weights':{" INT4 "}}}"),
     PACKED, PL_EFORMAT, "quantization_config.ignore: 're:(' is no expression"},
    {Q("'quant_method':'compressed-tensors','ignore':['m'],'config_groups':{'a':{'targets':['Linear'],'weights':{" INT4
       "}}}"),
     PACKED, PL_EFORMAT, "quantization_config.ignore: 'm' names m, whose weight is quantised"},
    {Q("'quant_method':'compressed-tensors','config_groups':{'a':{'targets':['re:x.*'],'weights':{" INT4 "}}}"), PACKED,
     PL_EFORMAT, "no target names m"},
    {Q("'quant_method':'compressed-tensors','ignore':['re:(m+)+[xy]'],'config_groups':{'a':{'targets':['"
       "Linear'],'weights':{" INT4 "}}}"),
     "mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm.weight_packed I32 2,8", PL_ELIMIT, "takes too long to match"},
    {Q("'quant_method':'fp8','modules_to_not_convert':['m']"), BLOCKS, PL_EFORMAT,
     "modules_to_not_convert: 'm' names m"},
    {Q("'quant_method':'modelopt','quant_algo':'NVFP4','exclude_modules':['m*']"), FP4, PL_EFORMAT,
     "exclude_modules: 'm*' names m"},
    {FP8, "m.weight BF16 2,2;gate.x.weight F8_E4M3 2,2;gate.x.weight_scale_inv F32 1,1", PL_EFORMAT,
     "'gate' names gate.x"},
    {FP8, "m.weight BF16 2,2;a.7.b.c.weight F8_E4M3 2,2;a.7.b.c.weight_scale_inv F32 1,1", PL_EFORMAT,
     "'a.*.b' names a.7.b.c"},
    /* parts */
    {CT(INT4), "m.weight_packed I32 2,8", PL_ENAME, "tensor 'm.weight_packed': no weight_scale beside it"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale BF16 2,3", PL_ESHAPE,
     "tensor 'm.weight_scale': [2,3], want [2,2]"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale BF16 4", PL_ESHAPE, "tensor 'm.weight_scale': [4], want [2,2]"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale I32 2,2", PL_EDTYPE, "tensor 'm.weight_scale': format I32"},
    {CT(INT4), "m.weight_packed I32 2,9;m.weight_scale BF16 2,2", PL_ESHAPE,
     "rows of 72, want a multiple of the group, 32"},
    {CT(INT4), "m.weight_packed I32 0,8;m.weight_scale BF16 0,2", PL_ESHAPE, "tensor 'm.weight_packed': is empty"},
    {CT(INT4), "m.weight_packed I32 2,0;m.weight_scale BF16 2,0", PL_ESHAPE, "tensor 'm.weight_packed': is empty"},
    {CT(INT4), "m.weight_packed I32 8;m.weight_scale BF16 2,2", PL_ESHAPE, "tensor 'm.weight_packed': [8], want [8,0]"},
    {CT(INT4), "m.weight_packed U8 2,8;m.weight_scale BF16 2,2", PL_EDTYPE, "tensor 'm.weight_packed': format U8"},
    {CT(INT4), PACKED ";m.weight_zero_point I32 1,2", PL_EFORMAT,
     "has zero points, but the config says symmetric = true"},
    {CT("'num_bits':4,'type':'int','symmetric':false,'strategy':'group','group_size':32"), PACKED, PL_EFORMAT,
     "no zero points, but the config says symmetric = false"},
    {CT(INT4), PACKED ";m.weight_g_idx I32 64", PL_EFORMAT, "tensor 'm.weight_g_idx': value 0 is 286331153"},
    {CT(INT4), PACKED ";m.weight_g_idx I32 64 ffffffff", PL_OK, ""}, /* was never set */
    {CT(INT4), PACKED ";m.weight_g_idx I32 64 0000000001000000", PL_OK, ""},
    {CT(INT4 ",'actorder':'group'"), PACKED, PL_ENAME, "no weight_g_idx beside it"},
    {CT(INT4 ",'actorder':'group'"), PACKED ";m.weight_g_idx I32 64 0000000001000000", PL_OK, ""},
    {CT(INT4), PACKED ";m.weight_g_idx I64 64 00", PL_EDTYPE, "tensor 'm.weight_g_idx': format I64"},
    {CT(INT4), PACKED ";m.weight_g_idx I32 2,32 00", PL_ESHAPE, "tensor 'm.weight_g_idx': [2,32], want [64]"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale BF16 2,2;m.weight_shape I64 2 03000000000000004000000000000000",
     PL_EFORMAT, "tensor 'm.weight_shape': size 0 is not 2"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale BF16 2,2;m.weight_shape I64 2 02000000010000004000000000000000",
     PL_EFORMAT, "tensor 'm.weight_shape': size 0 is not 2"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale BF16 2,2 c07f", PL_EFORMAT, "i4g32: row 0, block 0: a scale"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale BF16 2,2 007e", PL_EFORMAT, "i4g32: row 0, block 0: a scale"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale F16 2,2 007c", PL_EFORMAT, "u4g32: row 0, block 0: a scale"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale F32 2,2 01000040", PL_EFORMAT, "value 0 is 2, which is no half"},
    {CT(INT4), "m.weight_packed I32 2,8;m.weight_scale F32 2,2 0000c07f", PL_EFORMAT,
     "value 0 is nan, which is no half"},
    {CT(INT4), "m.weight BF16 2,2;m.weight_scale BF16 2,2", PL_EFORMAT, "tensor 'm.weight_scale': no quantised weight"},
    {CT("'num_bits':4,'type':'int','strategy':'group','group_size':48"),
     "m.weight_packed I32 2,12;m.weight_scale BF16 2,2", PL_ESHAPE, "groups of 48, want a multiple of 32"},
    {CT("'num_bits':8,'type':'float','strategy':'channel'"), PACKED, PL_EFORMAT,
     "tensor 'm.weight_packed': is packed, but"},
    {CT("'num_bits':8,'type':'float','strategy':'channel'"), "m.weight F8_E4M3 3,64;m.weight_scale BF16 2,1", PL_ESHAPE,
     "tensor 'm.weight_scale': [2,1], want [3,1]"},
    {CT(INT4), "m.weight F8_E4M3 3,64;m.weight_scale BF16 3,1", PL_EFORMAT, "tensor 'm.weight': is f8, but"},
    {FP8, "m.weight F8_E4M3 2,200", PL_ENAME, "tensor 'm.weight': no weight_scale beside it"},
    {FP8, "m.weight F8_E4M3 2,200;m.weight_scale_inv F32 1,1", PL_ESHAPE,
     "tensor 'm.weight_scale_inv': [1,1], want [1,2]"},
    {FP8, "m.weight F8_E4M3 129,200;m.weight_scale_inv F32 1,2", PL_ESHAPE, "want [2,2]"},
    {FP8, "m.weight F8_E4M3 2,200;m.weight_scale_inv F32 1,2 0000c07f", PL_EFORMAT,
     "tensor 'm.weight_scale_inv': value 0 is not finite"},
    {FP8, "m.weight F8_E4M3 2,128;m.weight_scale_inv F32 1,1 0000807e", PL_EFORMAT, "f8g128: row 0, block 0"},
    {FP8, "m.weight F8_E4M3 2,200 117f;m.weight_scale_inv F32 1,2 0000003d", PL_EFORMAT,
     "row 0, element 1: not finite"},
    {FP8, "m.weight F8_E4M3 2,256 117f;m.weight_scale_inv F32 1,2 0000003d", PL_EFORMAT, "f8g128: row 0, block 0"},
    {FP8, "m.weight BF16 2,2;m.weight_scale_inv F32 1,1", PL_EFORMAT,
     "tensor 'm.weight_scale_inv': no quantised weight"},
    {FP8, "m.weight F8_E4M3 0,128;m.weight_scale_inv F32 0,1", PL_ESHAPE, "tensor 'm.weight': is empty"},
    {GPTQ, "m.qweight I32 8,8;m.scales F16 2,8", PL_ENAME, "no qzeros beside it"},
    {GPTQ, "m.qweight I32 8,8;m.qzeros I32 2,1", PL_ENAME, "no scales beside it"},
    {GPTQ, "m.qweight I32 8,8;m.scales F16 8,2;m.qzeros I32 2,1", PL_ESHAPE, "tensor 'm.scales': [8,2], want [2,8]"},
    {GPTQ, "m.qweight I32 8,8;m.scales F16 2,8;m.qzeros I32 2,2", PL_ESHAPE, "tensor 'm.qzeros': [2,2], want [2,1]"},
    {GPTQ, "m.qweight I32 8,7;m.scales F16 2,7;m.qzeros I32 2,0", PL_ESHAPE, "7 columns, want a multiple of 8"},
    {GPTQ, "m.qweight I32 7,8;m.scales F16 2,8;m.qzeros I32 2,1", PL_ESHAPE,
     "rows of 56, want a multiple of the group"},
    {GPTQ, QWEIGHT ";m.g_idx I32 64 00000000", PL_EFORMAT,
     "tensor 'm.g_idx': value 32 is 0, which has its 32 columns already"},
    {GPTQ, QWEIGHT ";m.g_idx I32 64 ffffffff", PL_EFORMAT, "tensor 'm.g_idx': value 0 is -1, want a group, 0 to 1"},
    {GPTQ, QWEIGHT ";m.g_idx I32 64 0100000002000000", PL_EFORMAT,
     "tensor 'm.g_idx': value 1 is 2, want a group, 0 to 1"},
    {GPTQ, QWEIGHT ";m.g_idx I32 64 00000080", PL_EFORMAT, "tensor 'm.g_idx': value 0 is -2147483648"},
    {GPTQ, QWEIGHT ";m.g_idx F32 64 00000000", PL_EDTYPE, "tensor 'm.g_idx': format F32"},
    {GPTQ, QWEIGHT ";m.g_idx I32 64 0100000000000000", PL_OK, ""},
    {Q("'quant_method':'gptq','bits':4,'group_size':32,'desc_act':true"), QWEIGHT, PL_ENAME, "no g_idx beside it"},
    {Q("'quant_method':'gptq','bits':4,'group_size':32,'desc_act':'yes'"), QWEIGHT, PL_EDTYPE, "desc_act"},
    {GPTQ, QWEIGHT ";m.g_idx I32 63", PL_ESHAPE, "tensor 'm.g_idx': [63], want [64]"},
    {GPTQ, "m.weight BF16 2,2;m.qzeros I32 2,2", PL_EFORMAT, "tensor 'm.qzeros': no quantised weight"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4", PL_ENAME, "no weight_scale_2 beside it"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_scale_2 F32 2", PL_ESHAPE,
     "tensor 'm.weight_scale_2': [2], want [1]"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,2;m.weight_scale_2 F32 1", PL_ESHAPE,
     "tensor 'm.weight_scale': [2,2], want [2,4]"},
    {NV, "m.weight U8 2,24;m.weight_scale F8_E4M3 2,3;m.weight_scale_2 F32 1", PL_ESHAPE,
     "rows of 48, want a multiple of 32"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_scale_2 F32 1 00000000", PL_EFORMAT,
     "0, want a positive number"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_scale_2 F32 1 0000c07f", PL_EFORMAT,
     "nan, want a positive number"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_scale_2 F32 1 000000bf", PL_EFORMAT,
     "-0.5, want a positive number"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_scale_2 F32 1 0000807f", PL_EFORMAT,
     "inf, want a positive number"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4 7e;m.weight_scale_2 F32 1 ffff7f7f", PL_EFORMAT,
     "nvfp4: row 0, block 0"},
    {NV, "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4 117f;m.weight_scale_2 F32 1 0000003d", PL_EFORMAT,
     "nvfp4: row 0, block 0"},
    {NV, "m.weight F8_E4M3 2,32;m.weight_scale F32 1", PL_EFORMAT, "tensor 'm.weight': is f8, but config.json's"},
    {Q("'quant_method':'mxfp4'"), "m.weight_blocks U8 2,3,2,16;m.weight_scales U8 2,3,2 70", PL_OK, ""},
    {Q("'quant_method':'mxfp4'"), "m.weight_blocks U8 2,3,2,16;m.weight_scales U8 2,3,2 ff", PL_EFORMAT,
     "mxfp4: row 0, block 0"},
    {Q("'quant_method':'mxfp4'"), "m.weight_blocks U8 2,3,2,8;m.weight_scales U8 2,3,2", PL_ESHAPE,
     "[2,3,2,8], want [experts"},
    {Q("'quant_method':'mxfp4'"), "m.weight_blocks U8 2,3,2,16;m.weight_scales U8 2,2,2", PL_ESHAPE, "as many scales"},
    {Q("'quant_method':'mxfp4'"), "m.weight_blocks U8 2,3,2,16", PL_ENAME, "no scales beside it"},
};

START_TEST(made)
{
    char config[1024];
    snprintf(config, sizeof config, "%s", row[_i].config);
    for (char *p = config; *p; p++)
        if (*p == '\'') *p = '"';
    const int rc = try_it(config, row[_i].tensors);
    ck_assert_msg(rc == row[_i].code && strstr(err.msg, row[_i].text), "row %d: got %d '%s', want %d '%s'", _i, rc,
                  err.msg, row[_i].code, row[_i].text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("parts");
    TCase *t = tcase_create("golden"), *m = tcase_create("made");
    suite_add_tcase(s, t);
    suite_add_tcase(s, m);
    tcase_set_timeout(t, 120);
    tcase_add_test(t, golden);
    tcase_add_checked_fixture(m, setup, folder_remove);
    tcase_add_loop_test(m, made, 0, (int)(sizeof row / sizeof *row));
    return run_suite(s);
}
