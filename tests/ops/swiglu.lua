-- swiglu: silu(gate) * up, silu(x) = x / (1 + e^-x).
return function(T)
  local function act(g)
    return g / (1 + math.exp(-g))
  end
  local cases = {}
  local function case(dims, scale)
    local n = T.count(dims)
    cases[#cases + 1] = { name = table.concat(dims, "x") .. " times " .. scale, y = { dims },
      x = { gate = { dims, T.list(n, function() return T.f32(T.normal() * scale) end) },
        up = { dims, T.list(n, T.normal) } } }
  end
  for _, dims in ipairs { { 1, 1 }, { 3, 7 }, { 2, 16 }, { 5, 17 }, { 2, 3, 65 }, { 2, 2, 3, 33 },
    { 13, 1536 } } do case(dims, 2) end
  case({ 4, 100 }, 30)
  case({ 4, 100 }, 1e-4)
  -- the ends of the range: the exponential overflows or vanishes, the product does not
  local ends = { 0, -0.0, 1e-30, 80, -80, 88, -88, 89, -89, 1e4, -1e4, 3e38, -3e38, 1 / 0, 0 / 0 }
  cases[#cases + 1] = { name = "ends", y = { { 1, #ends } }, tol = { abs = 1e-30, rel = 2e-6 },
    x = { gate = { { 1, #ends }, ends }, up = { { 1, #ends }, T.list(#ends, function() return 0.75 end) } } }
  local x34, x35 = { { 3, 4 }, T.list(12, T.normal) }, { { 3, 5 }, T.list(15, T.normal) }
  return {
    cases = cases, rows = { "gate", "up" }, in_place = "up", tol = { abs = 1e-30, rel = 4e-7 },
    call = function(C, s, y, x, _, err) return C.pl_swiglu(s, y, x.gate, x.up, err) end,
    ref = function(_, x)
      return T.list(#x.gate, function(i) return act(x.gate[i]) * x.up[i] end)
    end,
    errors = {
      { x = { gate = x34, up = x35 }, y = { { 3, 4 } }, code = "PL_ESHAPE",
        text = "swiglu: up is [3,5] but F = 4 from gate" },
      { x = { gate = x34, up = x34 }, y = { { 3, 4 }, "f16" }, code = "PL_EDTYPE",
        text = "swiglu: y is f16, want f32" },
    },
  }
end
