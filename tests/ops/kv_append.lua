-- kv_append: keys and values go to the cache, rounded to its format. They are read back through attention:
-- with a window of one token y is the value; with two tokens of which the older has a zero key, y is a
-- sigmoid of the newer key. tests/c/attend.c does much more of this.
local ffi = require "ffi"

return function(T)
  local C, err = T.C, T.err

  local function open(dev, o)
    local kv = ffi.new "pl_kv *[1]"
    T.try(C.pl_kv_open(kv, dev, ffi.new("pl_kv_opts", o), err))
    return kv[0]
  end
  local function begin(kv, ...) -- seq, n, ...
    local a = { ... }
    local span = ffi.new("pl_span[?]", #a / 2)
    for i = 1, #a, 2 do span[(i - 1) / 2] = { a[i], a[i + 1] } end
    T.try(C.pl_kv_begin(kv, span, #a / 2, err))
  end

  -- what the cache makes of a head's row; by: the layer's scale, if the cache has one
  local function stored(row, dtype, scale, by)
    local out, most = {}, 0
    if dtype ~= C.PL_F8 then
      for i, x in ipairs(row) do out[i] = dtype == C.PL_BF16 and T.bf16(x) or x end
      return out
    end
    for _, x in ipairs(row) do most = math.max(most, math.abs(x)) end
    if scale == C.PL_SCALE_TOKEN then by = most == 0 and 1 or T.f32(most / 448) end
    -- attention rounds a token's own scale to BF16, with the probability
    local factor = scale == C.PL_SCALE_TOKEN and T.bf16(by) or by
    for i, x in ipairs(row) do out[i] = T.f32(T.f8(T.f32(x / by)) * factor) end
    return out
  end

  local function values(path, threads, dtype, dims, view, scale)
    local heads, key_dim, value_dim = unpack(dims)
    scale = scale or C.PL_SCALE_NONE
    local dev = T.dev(path, threads)
    local s = C.pl_dev_stream(dev)
    local kv = open(dev, { layers = 3, heads = heads, key_dim = key_dim, value_dim = value_dim, page = 16,
      dtype = dtype, n_pages = 9, scale = scale })
    local by = ffi.new("float[?]", heads)
    for i = 0, heads - 1 do by[i] = scale == C.PL_SCALE_HEAD and 0.01 * (i + 1) or 0.0071 end
    if scale == C.PL_SCALE_TENSOR or scale == C.PL_SCALE_HEAD then
      for layer = 0, 2 do T.try(C.pl_kv_set_scales(kv, layer, by, by, err)) end
    end
    local seq = ffi.new "int32_t[1]"
    for _ = 1, 2 do T.try(C.pl_kv_seq_new(kv, 1, seq, err)) end
    local t = 37
    begin(kv, 1, 20, 0, 17)
    T.seed(5)
    local v = T.list(t * heads * value_dim, T.normal)
    local k = T.tensor(dev, { t, heads, key_dim }, "f32", T.list(t * heads * key_dim, T.normal), view)
    local tv = T.tensor(dev, { t, heads, value_dim }, "f32", v, view)
    local q = T.tensor(dev, { t, heads, key_dim }, "f32", T.list(t * heads * key_dim, T.normal))
    local y = T.tensor(dev, { t, heads, value_dim })
    for layer = 0, 2 do T.try(C.pl_kv_append(s, kv, layer, k.t, tv.t, err)) end
    T.try(C.pl_attend(s, y.t, q.t, kv, 2, 1, 1, err))
    C.pl_kv_commit(kv, nil)
    local out, want = T.get(y), ffi.new("float[?]", y.n)
    for row = 0, t * heads - 1 do
      local x = { unpack(v, row * value_dim + 1, (row + 1) * value_dim) }
      for d, r in ipairs(stored(x, dtype, scale, by[row % heads])) do want[row * value_dim + d - 1] = r end
    end
    T.same(want, out, y.n, "kv_append: values, %d heads of %d + %d, %s, scale kind %d", heads, key_dim,
      value_dim, T.path_name(path), scale)
    T.release()
    C.pl_kv_close(kv)
  end

  local function keys(dtype)
    local dev, dim = T.dev(C.PL_PATH_AUTO, 2), 19
    local s = C.pl_dev_stream(dev)
    local kv = open(dev, { layers = 1, heads = 1, key_dim = dim, value_dim = 1, page = 16, dtype = dtype,
      n_pages = 2 })
    T.try(C.pl_kv_seq_new(kv, 1, ffi.new "int32_t[1]", err))
    begin(kv, 0, 2)
    local key, key_rows = {}, {}
    for d = 1, dim do
      key[d] = T.normal()
      key_rows[d], key_rows[dim + d] = 0, key[d]
    end
    T.try(C.pl_kv_append(s, kv, 0, T.tensor(dev, { 2, 1, dim }, "f32", key_rows).t,
      T.tensor(dev, { 2, 1, 1 }, "f32", { 0, 1 }).t, err))
    for d = 1, dim do -- each head's query is one unit vector
      local q, y = {}, T.tensor(dev, { 2, 1, 1 })
      for i = 1, 2 * dim do q[i] = i == dim + d and 1 or 0 end
      T.try(C.pl_attend(s, y.t, T.tensor(dev, { 2, 1, dim }, "f32", q).t, kv, 0, 1, 0, err))
      local want = 1 / (1 + math.exp(-(dtype == C.PL_BF16 and T.bf16(key[d]) or key[d])))
      T.near(T.get(y) + 1, { want }, { abs = dtype == C.PL_BF16 and 4e-3 or 1e-6 }, "kv_append: key dim %d",
        d)
    end
    T.release()
    C.pl_kv_close(kv)
  end

  local function errors()
    local dev = T.dev(C.PL_PATH_AUTO, 2)
    local s = C.pl_dev_stream(dev)
    local kv = open(dev, { layers = 2, heads = 2, key_dim = 4, value_dim = 6, page = 16, dtype = C.PL_BF16,
      n_pages = 2 })
    T.try(C.pl_kv_seq_new(kv, 1, ffi.new "int32_t[1]", err))
    begin(kv, 0, 3)
    local function append(layer, k, v, k_type)
      return C.pl_kv_append(s, kv, layer, T.tensor(dev, k, k_type).t, T.tensor(dev, v).t, err)
    end
    T.expect_error(append(2, { 3, 2, 4 }, { 3, 2, 6 }), "PL_EARG", "kv_append: layer 2, want 0 to 1", "layer")
    T.expect_error(append(0, { 3, 1, 4 }, { 3, 1, 6 }), "PL_ESHAPE",
      "kv_append: 1 heads of 4 (k) and 6 (v), want the cache's 2 of 4 and 6",
      "heads")
    T.expect_error(append(0, { 3, 2, 4 }, { 3, 2, 4 }), "PL_ESHAPE", "kv_append: 2 heads of 4 (k) and 4 (v)",
      "value dim")
    T.expect_error(append(0, { 4, 2, 4 }, { 4, 2, 6 }), "PL_ESHAPE",
      "kv_append: k has 4 tokens, want the step's 3", "tokens")
    T.expect_error(append(0, { 3, 2, 4 }, { 4, 2, 6 }), "PL_ESHAPE",
      "kv_append: v is [4,2,6] but T = 3 from k", "v's tokens")
    T.expect_error(append(0, { 3, 2, 4 }, { 3, 2, 6 }, "bf16"), "PL_EDTYPE",
      "kv_append: k is bf16, want f32", "format")
    C.pl_kv_abort(kv)
    T.check(append(0, { 0, 2, 4 }, { 0, 2, 6 }) == 0, "kv_append: an empty step fails")
    T.release()
    C.pl_kv_close(kv)
  end

  return {
    check = function()
      for _, path in ipairs(T.paths) do
        for _, dims in ipairs { { 1, 1, 1 }, { 3, 64, 64 }, { 2, 17, 33 }, { 1, 256, 16 } } do
          values(path, 1, C.PL_BF16, dims, false)
          values(path, 3, C.PL_F32, dims, true)
          for scale = C.PL_SCALE_TENSOR, C.PL_SCALE_TOKEN do
            values(path, 2, C.PL_F8, dims, scale == C.PL_SCALE_HEAD, scale)
          end
        end
      end
      keys(C.PL_BF16)
      keys(C.PL_F32)
      errors()
    end,
  }
end
