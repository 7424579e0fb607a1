-- embed: rows of the table times scale. Block formats and packed tables are filled with random bytes; what
-- the rows mean is asked of pl_tensor_get_f32 (tests/c/quant.c checks that).
local ffi = require "ffi"

return function(T)
  local C, err = T.C, T.err
  local cases = {}
  for _, format in ipairs { "f32", "f16", "bf16", "f8" } do
    for _, size in ipairs { { 1, 1, 1 }, { 11, 17, 5 }, { 7, 576, 3 } } do
      local v, d, n = unpack(size)
      -- exact in all formats
      local values = T.list(v * d, function() return T.bf16(math.floor(T.normal() * 4) / 4) end)
      cases[#cases + 1] = { name = ("%dx%d %s"):format(v, d, format), y = { { n, d } },
        attr = { scale = n == 3 and 25.298221 or 1 },
        x = { table = { { v, d }, values, format }, ids = { { n },
          T.list(n, function(i) return (i * 5) % v end), "i32" } } }
    end
  end
  local table34 = { { 3, 4 }, T.list(12, T.normal) }

  local function blocks(name, code, packed)
    local v, d = 37, 512
    local dev = T.dev(C.PL_PATH_AUTO, 2)
    local w, packed_w = ffi.new "pl_tensor[1]", ffi.new "pl_tensor[1]"
    T.try(C.pl_tensor_new(w, dev, code, 2, ffi.new("int64_t[4]", v, d), err))
    local bytes, block = v * d / C.pl_dtype_block(code) * C.pl_dtype_bytes(code), C.pl_dtype_bytes(code)
    local p = ffi.cast("uint8_t *", w[0].data)
    for i = 0, bytes - 1 do p[i] = math.floor((T.uniform() + 1) * 128) end
    if C.pl_dtype_block(code) > 1 then
      T.random_blocks(code, p, bytes / block)
    elseif name == "f32" then
      for i = 3, bytes - 1, 4 do p[i] = bit.band(p[i], 0x3f) end
    else
      for i = block - 1, bytes - 1, block do p[i] = bit.band(p[i], 0x3f) end
    end
    local values = ffi.new("float[?]", v * d)
    T.try(C.pl_tensor_get_f32(w, values, v * d, err))
    if packed then T.try(C.pl_dev_pack(dev, packed_w, w, nil, err)) end
    local ids = T.tensor(dev, { 5 }, "i32", { 36, 0, 17, 15, 16 })
    local y = T.tensor(dev, { 5, d }, "f32", nil, true)
    T.try(C.pl_embed(C.pl_dev_stream(dev), y.t, packed and packed_w or w, ids.t, 0.5, err))
    local want, n = ffi.new("float[?]", 5 * d), 0
    for _, id in ipairs { 36, 0, 17, 15, 16 } do
      for i = 0, d - 1 do
        want[n] = values[id * d + i] * 0.5
        if math.abs(want[n]) < 2 ^ -126 then want[n] = 0 * want[n] end -- kernels have no denormals
        n = n + 1
      end
    end
    T.same(want, T.get(y), n, "embed: %s%s table", name, packed and " packed" or "")
    T.check(T.untouched(y), "embed: %s wrote beside y", name)
    C.pl_tensor_release(w)
    C.pl_tensor_release(packed_w)
    T.release()
  end

  return {
    cases = cases, rows = { "ids" }, tol = {},
    call = function(C_, s, y, x, a, e) return C_.pl_embed(s, y, x.table, x.ids, a.scale or 1, e) end,
    ref = function(c, x)
      local d, scale = c.y[1][2], T.f32(c.attr.scale)
      return T.list(#x.ids * d, function(i)
        return T.f32(x.table[x.ids[math.floor((i - 1) / d) + 1] * d + (i - 1) % d + 1] * scale)
      end)
    end,
    errors = {
      { x = { table = table34, ids = { { 3 }, { 0, 2, 3 }, "i32" } }, y = { { 3, 4 } }, code = "PL_EARG",
        text = "embed: ids[2] = 3, want 0 to 2" },
      { x = { table = table34, ids = { { 1 }, { -1 }, "i32" } }, y = { { 1, 4 } }, code = "PL_EARG",
        text = "embed: ids[0] = -1, want 0 to 2" },
      { x = { table = table34, ids = { { 1 }, { 0 } } }, y = { { 1, 4 } }, code = "PL_EDTYPE",
        text = "embed: ids is f32, want i32" },
      { x = { table = table34, ids = { { 1 }, { 0 }, "i32" } }, y = { { 1, 5 } }, code = "PL_ESHAPE",
        text = "embed: y is [1,5] but D = 4 from table" },
    },
    check = function()
      for code = 0, C.PL_N_DTYPES - 1 do
        if code ~= C.PL_I32 and code ~= C.PL_I64 and code ~= C.PL_U8 then
          local name = ffi.string(C.pl_dtype_name(code))
          blocks(name, code, false)
          if C.pl_dev_packed_bytes(C.PL_DEV_CPU, code, 37, 512) >= 0 then blocks(name, code, true) end
        end
      end
    end,
  }
end
