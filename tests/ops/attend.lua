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
      page = 16, dtype = c.dtype, n_pages = 16 }), err))
    kv = kv[0]
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
    local y, at, round = {}, 0, c.dtype == C.PL_BF16 and T.bf16 or T.f32
    local function dot(a, b, n, x, z)
      local sum = 0
      for i = 1, n do sum = sum + round(x[a + i]) * round(z[b + i]) end
      return sum
    end
    for _, n in ipairs(c.len) do
      for t = 0, n - 1 do
        for h = 0, c.heads - 1 do
          local g, p, sum, top = math.floor(h / (c.heads / c.groups)), {}, 0, -math.huge
          local from = c.window > 0 and math.max(0, t - c.window + 1) or 0
          for u = from, t do
            p[u] = dot(((at + t) * c.heads + h) * c.key_dim, ((at + u) * c.groups + g) * c.key_dim,
              c.key_dim, c.q, c.k) * T.f32(c.scale)
            top = math.max(top, p[u])
          end
          for u = from, t do
            p[u] = round(math.exp(p[u] - top))
            sum = sum + p[u]
          end
          for d = 1, c.value_dim do
            local o = 0
            for u = from, t do o = o + p[u] * round(c.v[((at + u) * c.groups + g) * c.value_dim + d]) end
            y[#y + 1] = o / sum
          end
        end
      end
      at = at + n
    end
    return y
  end

  local function one(heads, groups, key_dim, value_dim, window, dtype, len)
    local c = { heads = heads, groups = groups, key_dim = key_dim, value_dim = value_dim, window = window,
      dtype = dtype, len = len,
      scale = 1 / math.sqrt(key_dim) }
    local n = 0
    for _, l in ipairs(len) do n = n + l end
    c.q = T.list(n * heads * key_dim, function() return T.f32(2 * T.normal()) end)
    c.k, c.v = T.list(n * groups * key_dim, T.normal), T.list(n * groups * value_dim, T.normal)
    local name = ("%d/%d heads of %d + %d, window %d"):format(heads, groups, key_dim, value_dim, window)
    local y, size = run(c, C.PL_PATH_AUTO, 1)
    -- a probability near the middle of two BF16 values may be rounded to the other one than in double, but
    -- few are
    local want, off = ref(c), 0
    T.near(y, want, { abs = dtype == C.PL_BF16 and 0.012 or 4e-6 }, "attend %s", name)
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
      errors()
    end,
  }
end
