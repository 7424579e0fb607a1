-- linear: y = x w^T + b, x rounded to BF16 or kept, w in every format, as rows and packed. Block formats
-- are filled with random bytes; their values are asked of pl_tensor_get_f32 (tests/c/quant.c checks those).
-- tests/c/linear.c compares all shapes with the definition bit for bit; here: the values in double, paths,
-- threads, views, rows alone, errors.
local ffi = require "ffi"

return function(T)
  local C, err = T.C, T.err

  -- w[n,k]: the tensor, and its values
  local function weights(code, n, k)
    local w, values = ffi.new "pl_tensor[1]", ffi.new("float[?]", n * k)
    T.try(C.pl_tensor_new(w, T.dev(C.PL_PATH_AUTO, 1), code, 2, ffi.new("int64_t[4]", n, k), err))
    if C.pl_dtype_block(code) == 1 then
      for i = 0, n * k - 1 do values[i] = T.normal() end
      T.try(C.pl_tensor_set_f32(w, values, n * k, err))
    else
      T.random_blocks(code, ffi.cast("uint8_t *", w[0].data), n * k / C.pl_dtype_block(code))
    end
    T.try(C.pl_tensor_get_f32(w, values, n * k, err))
    return w, values
  end

  local function run(path, threads, m, n, k, x, w, b, act, view)
    local dev = T.dev(path, threads)
    local tx, ty = T.tensor(dev, { m, k }, "f32", x, view), T.tensor(dev, { m, n }, "f32", nil, view)
    local tb = b and T.tensor(dev, { n }, "f32", b)
    T.try(C.pl_linear(C.pl_dev_stream(dev), ty.t, tx.t, w, tb and tb.t or nil, act, err))
    T.check(T.untouched(ty), "linear %dx%dx%d: wrote beside y", m, n, k)
    local y = T.get(ty)
    T.release()
    return y
  end

  local function one(code, m, n, k, act, bias)
    local name = ("%s %dx%dx%d %s"):format(ffi.string(C.pl_dtype_name(code)), m, n, k,
      act == C.PL_ACT_F32 and "f32" or "bf16")
    local w, values = weights(code, n, k)
    local packed = ffi.new "pl_tensor[1]"
    T.try(C.pl_dev_pack(T.dev(C.PL_PATH_AUTO, 1), packed, w, nil, err))
    local x, b = T.list(m * k, T.normal), bias and T.list(n, T.normal)
    local y = run(C.PL_PATH_AUTO, 1, m, n, k, x, packed, b, act)
    for i = 0, m - 1 do
      for j = 0, n - 1 do
        local sum, size = b and b[j + 1] or 0, b and math.abs(b[j + 1]) or 0
        for l = 0, k - 1 do
          local p = (act == C.PL_ACT_F32 and x[i * k + l + 1] or T.bf16(x[i * k + l + 1])) * values[j * k + l]
          sum, size = sum + p, size + math.abs(p)
        end
        -- float sums: their error follows the size of the terms. Codes and minima are multiplied apart from
        -- each other, so the terms are larger than the values there.
        local allowed = size * 4e-6 + 1e-30
        T.check(math.abs(y[i * n + j] - sum) <= allowed, "linear %s: y[%d,%d] = %.9g, want %.9g within %.2g",
          name, i, j,
          y[i * n + j], sum, allowed)
      end
    end
    T.same(y, run(C.PL_PATH_AUTO, 2, m, n, k, x, w, b, act), m * n, "linear %s: rows layout", name)
    T.same(y, run(C.PL_PATH_AUTO, 3, m, n, k, x, packed, b, act, true), m * n, "linear %s: 3 threads, views",
      name)
    for _, path in ipairs(T.paths) do
      local got = run(path, 2, m, n, k, x, packed, b, act)
      T.same(y, got, m * n, "linear %s: path %s", name, T.path_name(path))
    end
    for i = 0, m - 1, math.max(1, math.floor(m / 2)) do
      local row = {}
      for l = 1, k do row[l] = x[i * k + l] end
      T.same(y + i * n, run(C.PL_PATH_AUTO, 2, 1, n, k, row, packed, b, act), n, "linear %s: row %d alone",
        name, i)
    end
    C.pl_tensor_release(w)
    C.pl_tensor_release(packed)
  end

  local function call(C_, s, y, x, a, e)
    return C_.pl_linear(s, y, x.x, x.w, x.b, a.act or C.PL_ACT_BF16, e)
  end
  local function f32(...)
    local dims = { ... }
    return { dims, T.list(T.count(dims), T.normal) }
  end
  return {
    call = call,
    check = function()
      for code = 0, C.PL_N_DTYPES - 1 do
        if code ~= C.PL_I32 and code ~= C.PL_I64 and code ~= C.PL_U8 then
          local block = C.pl_dtype_block(code)
          for act = 0, 1 do
            one(code, 1, 1, block, act, false)
            one(code, 2, 17, block == 1 and 37 or 3 * block, act, true)
            one(code, 19, 33, block > 32 and 2 * block or 96, act, false)
          end
        end
      end
    end,
    errors = {
      { x = { x = f32(2, 8), w = f32(3, 9) }, y = { { 2, 3 } }, code = "PL_ESHAPE",
        text = "linear: w is [3,9] but K = 8 from x" },
      { x = { x = f32(2, 8), w = f32(3, 8), b = f32(2) }, y = { { 2, 3 } }, code = "PL_ESHAPE",
        text = "linear: b is [2] but N = 3 from w" },
      { x = { x = f32(2, 8), w = f32(3, 8) }, y = { { 2, 4 } }, code = "PL_ESHAPE",
        text = "linear: y is [2,4] but N = 3 from w" },
      { x = { x = f32(2, 8), w = { { 3, 8 }, T.list(24, function(i) return i end), "i32" } },
        y = { { 2, 3 } },
        code = "PL_EDTYPE", text = "linear: w is i32" },
      { x = { x = f32(2, 8), w = f32(3, 8) }, y = { { 2, 3 } }, attr = { act = 7 }, code = "PL_EARG",
        text = "linear:" },
    },
  }
end
