-- gather: rows of x, exact.
return function(T)
  local cases = {}
  local function case(t, d, rows)
    cases[#cases + 1] = { name = ("%d of %dx%d"):format(#rows, t, d), y = { { #rows, d } },
      x = { x = { { t, d }, T.list(t * d, T.normal) }, rows = { { #rows }, rows, "i32" } } }
  end
  case(1, 1, { 0 })
  case(5, 17, { 4, 0, 4 })
  case(37, 64, { 36, 1, 0, 35, 2 })
  local x = { { 3, 2 }, T.list(6, T.normal) }
  return {
    cases = cases, rows = { "rows" }, tol = {},
    call = function(C, s, y, v, _, err) return C.pl_gather(s, y, v.x, v.rows, err) end,
    ref = function(c, v)
      local d = c.y[1][2]
      return T.list(#v.rows * d,
        function(i) return v.x[v.rows[math.floor((i - 1) / d) + 1] * d + (i - 1) % d + 1] end)
    end,
    errors = {
      { x = { x = x, rows = { { 2 }, { 0, 3 }, "i32" } }, y = { { 2, 2 } }, code = "PL_EARG",
        text = "gather: rows[1] = 3, want 0 to 2" },
      { x = { x = x, rows = { { 2 }, { -1, 0 }, "i32" } }, y = { { 2, 2 } }, code = "PL_EARG",
        text = "gather: rows[0] = -1, want 0 to 2" },
      { x = { x = x, rows = { { 2 }, { 1, 0 }, "i32" } }, y = { { 2, 3 } }, code = "PL_ESHAPE",
        text = "gather: y is [2,3] but D = 2 from x" },
    },
  }
end
