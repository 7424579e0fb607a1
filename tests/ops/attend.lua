-- attend: softmax(scale q k^T) v over a request's own earlier tokens. Small contexts here, in plain Lua
-- doubles; tests/c/attend.c has the long ones, windows over chunk limits, and the comparison of steps and
-- batches.
local ffi = require "ffi"

return function(T)
  local C, err = T.C, T.err

  local function run(c, path, threads, view)
    local dev = T.dev(path, threads)
    local s = C.pl_dev_stream(dev)
    local kv = ffi.new "pl_kv *[1]"
    T.try(C.pl_kv_open(kv, dev, ffi.new("pl_kv_opts", { layers = 2, heads = c.groups, key_dim = c.key_dim,
      value_dim = c.value_dim,
      page = c.page, dtype = c.dtype, scale = c.kind, n_pages = 16 }), err))
    kv = kv[0]
    if c.kind == C.PL_SCALE_TENSOR or c.kind == C.PL_SCALE_HEAD then
      for layer = 0, 1 do
        local by = { k = ffi.new("float[?]", c.groups), v = ffi.new("float[?]", c.groups) }
        for g = 0, c.groups - 1 do by.k[g], by.v[g] = c.scale_of("k", g), c.scale_of("v", g) end
        T.try(C.pl_kv_set_scales(kv, layer, by.k, by.v, err))
      end
    end
    local span, total = ffi.new("pl_span[?]", #c.len), 0
    for i, n in ipairs(c.len) do
      T.try(C.pl_kv_seq_new(kv, 1, ffi.new "int32_t[1]", err))
      span[i - 1] = { i - 1, n }
      total = total + n
    end
    T.try(C.pl_kv_begin(kv, span, #c.len, err))
    local q = T.tensor(dev, { total, c.heads, c.key_dim }, "f32", c.q, view)
    local k = T.tensor(dev, { total, c.groups, c.key_dim }, "f32", c.k, view)
    local v = T.tensor(dev, { total, c.groups, c.value_dim }, "f32", c.v, view)
    local y = T.tensor(dev, { total, c.heads, c.value_dim }, "f32", nil, view)
    T.try(C.pl_kv_append(s, kv, 1, k.t, v.t, err))
    T.try(C.pl_attend(s, y.t, q.t, kv, 1, c.scale, c.window, err))
    T.check(T.untouched(y), "attend: wrote beside y")
    local out = T.get(y)
    C.pl_kv_abort(kv)
    T.release()
    C.pl_kv_close(kv)
    return out, y.n
  end

  local function ref(c)
    local y, at, round = {}, 0, c.dtype == C.PL_F32 and T.f32 or T.bf16
    local function dot(a, b, n, x, z)
      local sum = 0
      for i = 1, n do sum = sum + round(x[a + i]) * z[b + i] end
      return sum
    end
    -- what the cache holds, and each head row's scale
    local function stored(x, name, dim)
      local out, by = {}, {}
      for row = 0, #x / dim - 1 do
        local most, s = 0, 1
        for i = row * dim + 1, (row + 1) * dim do most = math.max(most, math.abs(x[i])) end
        if c.kind == C.PL_SCALE_TOKEN then s = T.f32(most / 448)
        elseif c.kind ~= C.PL_SCALE_NONE then s = c.scale_of(name, row % c.groups) end
        for i = row * dim + 1, (row + 1) * dim do
          out[i] = c.dtype == C.PL_F8 and T.f8(T.f32(x[i] / s)) * s or round(x[i])
        end
        by[row] = s
      end
      return out, by
    end
    local k = stored(c.k, "k", c.key_dim)
    local v, v_by = stored(c.v, "v", c.value_dim)
    for _, n in ipairs(c.len) do
      for t = 0, n - 1 do
        for h = 0, c.heads - 1 do
          local g, p, sum, top = math.floor(h / (c.heads / c.groups)), {}, 0, -math.huge
          local from = c.window > 0 and math.max(0, t - c.window + 1) or 0
          for u = from, t do
            p[u] = dot(((at + t) * c.heads + h) * c.key_dim, ((at + u) * c.groups + g) * c.key_dim,
              c.key_dim, c.q, k) * T.f32(c.scale)
            top = math.max(top, p[u])
          end
          for u = from, t do
            p[u] = math.exp(p[u] - top)
            if c.kind == C.PL_SCALE_TOKEN then
              sum = sum + p[u]
              local by = v_by[(at + u) * c.groups + g]
              p[u] = round(p[u] * by) / by
            else
              p[u] = round(p[u])
              sum = sum + p[u]
            end
          end
          for d = 1, c.value_dim do
            local o = 0
            for u = from, t do o = o + p[u] * v[((at + u) * c.groups + g) * c.value_dim + d] end
            y[#y + 1] = o / sum
          end
        end
      end
      at = at + n
    end
    return y
  end

  local function one(heads, groups, key_dim, value_dim, window, dtype, len, kind)
    local c = { heads = heads, groups = groups, key_dim = key_dim, value_dim = value_dim, window = window,
      dtype = dtype, len = len, kind = kind or C.PL_SCALE_NONE, page = kind == C.PL_SCALE_HEAD and 64 or 16,
      scale = 1 / math.sqrt(key_dim) }
    function c.scale_of(name, g)
      return T.f32((name == "k" and 0.009 or 0.012) * (c.kind == C.PL_SCALE_HEAD and 1 + g or 1))
    end
    local n = 0
    for _, l in ipairs(len) do n = n + l end
    c.q = T.list(n * heads * key_dim, function() return T.f32(2 * T.normal()) end)
    c.k, c.v = T.list(n * groups * key_dim, T.normal), T.list(n * groups * value_dim, T.normal)
    local name = ("%d/%d heads of %d + %d, window %d, scale kind %d"):format(heads, groups, key_dim, value_dim,
      window, c.kind)
    local y, size = run(c, C.PL_PATH_AUTO, 1)
    -- a probability near the middle of two BF16 values may be rounded to the other one than in double, but
    -- few are
    local want, off = ref(c), 0
    T.near(y, want, { abs = dtype == C.PL_F32 and 4e-6 or 0.012 }, "attend %s", name)
    for i, r in ipairs(want) do
      if math.abs(y[i - 1] - r) > 1e-5 then off = off + 1 end
    end
    T.check(off <= #want * 0.05, "attend %s: %d of %d values are off by more than 1e-5", name, off, #want)
    for _, path in ipairs(T.paths) do
      T.same(y, run(c, path, 2), size, "attend %s: path %s", name, T.path_name(path))
    end
    T.same(y, run(c, C.PL_PATH_AUTO, 3, true), size, "attend %s: 3 threads, views", name)
  end

  local function errors()
    local dev, kv = T.dev(C.PL_PATH_AUTO, 2), ffi.new "pl_kv *[1]"
    local s = C.pl_dev_stream(dev)
    T.try(C.pl_kv_open(kv, dev, ffi.new("pl_kv_opts", { layers = 2, heads = 2, key_dim = 4, value_dim = 6,
      page = 16,
      dtype = C.PL_BF16, n_pages = 2 }), err))
    T.try(C.pl_kv_seq_new(kv[0], 1, ffi.new "int32_t[1]", err))
    T.try(C.pl_kv_begin(kv[0], ffi.new("pl_span[1]", { { 0, 3 } }), 1, err))
    local function attend(layer, window, q, y, q_type)
      return C.pl_attend(s, T.tensor(dev, y).t, T.tensor(dev, q, q_type).t, kv[0], layer, 1, window, err)
    end
    T.expect_error(attend(-1, 0, { 3, 4, 4 }, { 3, 4, 6 }), "PL_EARG", "attend: layer -1, want 0 to 1",
      "layer")
    T.expect_error(attend(0, -5, { 3, 4, 4 }, { 3, 4, 6 }), "PL_EARG", "attend: window -5, want 0 or more",
      "window")
    T.expect_error(attend(0, 0, { 3, 3, 4 }, { 3, 3, 6 }), "PL_ESHAPE",
      "attend: q has 3 heads, want a multiple of the cache's 2", "heads")
    T.expect_error(attend(0, 0, { 3, 4, 5 }, { 3, 4, 6 }), "PL_ESHAPE",
      "attend: heads of 5 (q) and 6 (y), want the cache's 4 and 6", "dim")
    T.expect_error(attend(0, 0, { 2, 4, 4 }, { 2, 4, 6 }), "PL_ESHAPE",
      "attend: q has 2 tokens, want the step's 3", "tokens")
    T.expect_error(attend(0, 0, { 3, 4, 4 }, { 3, 2, 6 }), "PL_ESHAPE",
      "attend: y is [3,2,6] but H = 4 from q", "y's heads")
    T.expect_error(attend(0, 0, { 3, 4, 4 }, { 3, 4, 6 }, "f16"), "PL_EDTYPE", "attend: q is f16, want f32",
      "format")
    C.pl_kv_abort(kv[0])
    T.check(attend(0, 0, { 0, 4, 4 }, { 0, 4, 6 }) == 0, "attend: an empty step fails")
    T.release()
    C.pl_kv_close(kv[0])
  end

  return {
    check = function()
      for _, dtype in ipairs { C.PL_BF16, C.PL_F32 } do
        one(1, 1, 1, 1, 0, dtype, { 3 })
        one(9, 3, 64, 64, 0, dtype, { 20, 1, 37 })
        one(4, 1, 48, 80, 5, dtype, { 33, 16 })
        one(7, 7, 17, 19, 1, dtype, { 9 })
        one(8, 2, 80, 16, 32, dtype, { 65 })
      end
      for kind = C.PL_SCALE_TENSOR, C.PL_SCALE_TOKEN do
        one(1, 1, 1, 1, 0, C.PL_F8, { 3 }, kind)
        one(9, 3, 64, 64, 0, C.PL_F8, { 20, 1, 37 }, kind)
        one(4, 1, 48, 80, 5, C.PL_F8, { 33, 16 }, kind)
        one(7, 7, 17, 19, 1, C.PL_F8, { 9 }, kind)
        one(8, 2, 80, 16, 32, C.PL_F8, { 65 }, kind)
      end
      errors()
    end,
  }
end
