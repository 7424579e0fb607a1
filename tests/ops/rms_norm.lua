-- rms_norm: y = x w / sqrt(mean(x^2) + eps).
return function(T)
  local cases = {}
  local function case(dims, eps, scale)
    local d, n = dims[#dims], T.count(dims)
    cases[#cases + 1] = { name = table.concat(dims, "x") .. " eps " .. eps, y = { dims },
      attr = { eps = eps },
      x = { x = { dims, T.list(n, function() return T.f32(T.normal() * scale) end) },
        w = { { d }, T.list(d, T.normal) } } }
  end
  for _, dims in ipairs { { 1, 1 }, { 3, 7 }, { 2, 16 }, { 5, 17 }, { 2, 3, 64 }, { 2, 2, 3, 65 },
    { 1, 127 }, { 2, 257 },
    { 31, 576 }, { 1, 2049 } } do
    case(dims, 1e-5, 1)
  end
  case({ 2, 100 }, 1e-6, 1e-3)
  case({ 2, 100 }, 0, 1e4)
  case({ 1, 33 }, 1e-5, 0) -- all zeros
  local x = { { 2, 4 }, T.list(8, T.normal) }
  return {
    cases = cases, rows = { "x" }, in_place = "x", tol = { rel = 8e-7 },
    call = function(C, s, y, x_, a, err) return C.pl_rms_norm(s, y, x_.x, x_.w, a.eps or 1e-5, err) end,
    ref = function(case_, v)
      local d, y = case_.y[1][#case_.y[1]], {}
      for r = 0, #v.x / d - 1 do
        local sum = 0
        for i = 1, d do sum = sum + v.x[r * d + i] ^ 2 end
        for i = 1,
          d do y[r * d + i] = v.x[r * d + i] * v.w[i] / math.sqrt(sum / d + T.f32(case_.attr.eps)) end
      end
      return y
    end,
    errors = {
      { x = { x = x, w = { { 5 }, T.list(5, T.normal) } }, y = { { 2, 4 } }, code = "PL_ESHAPE",
        text = "rms_norm: w is [5] but D = 4 from x" },
      { x = { x = x, w = { { 4 }, T.list(4, T.normal), "bf16" } }, y = { { 2, 4 } }, code = "PL_EDTYPE",
        text = "rms_norm: w is bf16, want f32" },
    },
  }
end
