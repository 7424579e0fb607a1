-- add: elementwise sum, exact in double and rounded once.
return function(T)
  local cases = {}
  for _, dims in ipairs { { 1, 1 }, { 3, 7 }, { 2, 16 }, { 5, 17 }, { 2, 3, 65 }, { 2, 2, 3, 33 },
    { 37, 576 } } do
    local n = T.count(dims)
    cases[#cases + 1] = { name = table.concat(dims, "x"), y = { dims },
      x = { a = { dims, T.list(n, T.normal) }, b = { dims, T.list(n, T.normal) } } }
  end
  local d34, d35 = { { 3, 4 }, T.list(12, T.normal) }, { { 3, 5 }, T.list(15, T.normal) }
  return {
    cases = cases, rows = { "a", "b" }, in_place = "a", tol = {},
    call = function(C, s, y, x, _, err) return C.pl_add(s, y, x.a, x.b, err) end,
    ref = function(_, x)
      return T.list(#x.a, function(i) return T.f32(x.a[i] + x.b[i]) end)
    end,
    errors = {
      { x = { a = d34, b = d35 }, y = { { 3, 4 } }, code = "PL_ESHAPE",
        text = "add: b is [3,5] but D = 4 from a" },
      { x = { a = d34, b = d34 }, y = { { 4, 4 } }, code = "PL_ESHAPE",
        text = "add: y is [4,4], whose leading dims" },
      { x = { a = d34, b = d34 }, y = { { 3, 4 }, "bf16" }, code = "PL_EDTYPE",
        text = "add: y is bf16, want f32" },
      { x = { a = d34, b = { { 3, 4 }, d34[2], "f16" } }, y = { { 3, 4 } }, code = "PL_EDTYPE",
        text = "add: b is f16, want f32" },
    },
  }
end
