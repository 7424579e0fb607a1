-- columns: columns of x, exact.
return function(T)
  local cases = {}
  local function case(t, k, cols)
    cases[#cases + 1] = { name = ("%d of %dx%d"):format(#cols, t, k), y = { { t, #cols } },
      x = { x = { { t, k }, T.list(t * k, T.normal) }, cols = { { #cols }, cols, "i32" } } }
  end
  case(1, 1, { 0 })
  case(5, 17, { 16, 0, 16, 3 })
  case(37, 9, { 8, 7, 6, 5, 4, 3, 2, 1, 0 })
  case(3, 64, T.list(64, function(i) return (i * 29) % 64 end))
  local x = { { 2, 3 }, T.list(6, T.normal) }
  return {
    cases = cases, rows = { "x" }, tol = {},
    call = function(C, s, y, v, _, err) return C.pl_columns(s, y, v.x, v.cols, err) end,
    ref = function(c, v)
      local d, k = c.y[1][2], c.x.x[1][2]
      return T.list(c.y[1][1] * d,
        function(i) return v.x[math.floor((i - 1) / d) * k + v.cols[(i - 1) % d + 1] + 1] end)
    end,
    errors = {
      { x = { x = x, cols = { { 2 }, { 0, 3 }, "i32" } }, y = { { 2, 2 } }, code = "PL_EARG",
        text = "columns: cols[1] = 3, want 0 to 2" },
      { x = { x = x, cols = { { 2 }, { -1, 0 }, "i32" } }, y = { { 2, 2 } }, code = "PL_EARG",
        text = "columns: cols[0] = -1, want 0 to 2" },
      { x = { x = x, cols = { { 2 }, { 1, 0 }, "i32" } }, y = { { 2, 3 } }, code = "PL_ESHAPE",
        text = "columns: y is [2,3] but D = 2" },
    },
  }
end
