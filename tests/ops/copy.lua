-- copy: values in another format, rounded to nearest, ties to even.
return function(T)
  local function f16(x) -- by a search of the exponent
    local a = math.abs(x)
    if a ~= a or a == 0 then return x end
    if a >= 65520 then return x > 0 and math.huge or -math.huge end
    local e = -14
    while a >= 2 ^ (e + 1) do e = e + 1 end
    local m = a * 2 ^ (10 - e)
    local low = math.floor(m)
    if m - low > 0.5 or (m - low == 0.5 and low % 2 == 1) then low = low + 1 end
    return (x < 0 and -low or low) * 2 ^ (e - 10)
  end
  local round = { f32 = function(x) return x end, f16 = f16, bf16 = T.bf16 }
  local special = { 0, -0.0, 1, 1 + 2 ^ -8, 1 + 3 * 2 ^ -8, 1 + 2 ^ -11, 1 + 3 * 2 ^ -11, 65504, 65519,
    65520, -70000, 2 ^ -14,
    2 ^ -24, 2 ^ -25, 3 * 2 ^ -25, 1e-30, 3.3e38, 1 / 0, -1 / 0, 0 / 0 }
  local cases = {}
  for _, from in ipairs { "f32", "f16", "bf16" } do
    for _, to in ipairs { "f32", "f16", "bf16" } do
      for _, dims in ipairs { { 1, #special }, { 3, 7 }, { 2, 2, 33 }, { 5, 300 } } do
        local n = T.count(dims)
        local values = dims[2] == #special and special or T.list(n, T.normal)
        cases[#cases + 1] = { name = ("%s to %s, %s"):format(from, to, table.concat(dims, "x")),
          y = { dims, to },
          x = { x = { dims, values, from } }, from = from, to = to }
      end
    end
  end
  return {
    cases = cases, rows = { "x" }, tol = {},
    call = function(C, s, y, v, _, err) return C.pl_copy(s, y, v.x, err) end,
    ref = function(c, v)
      return T.list(#v.x, function(i) return round[c.to](round[c.from](T.f32(v.x[i]))) end)
    end,
    errors = {
      { x = { x = { { 2, 3 }, T.list(6, T.normal) } }, y = { { 2, 4 } }, code = "PL_ESHAPE",
        text = "copy: y is [2,4] but D = 3 from x" },
      { x = { x = { { 2, 3 }, { 1, 2, 3, 4, 5, 6 }, "i32" } }, y = { { 2, 3 } }, code = "PL_EDTYPE",
        text = "copy: x is i32, want f32, f16 or bf16" },
    },
  }
end
