-- rope: pairs of the first 2P dims turn by pos * freq[j], a product in float; the other dims pass.
return function(T)
  local cases = {}
  local function case(t, h, d, p, pairs_, scale, from)
    local pos = T.list(t, function(i) return from + (i * 7) % 11 end)
    cases[#cases + 1] = { name = ("%dx%dx%d, %d pairs, order %d, from %d"):format(t, h, d, p, pairs_, from),
      y = { { t, h, d } },
      attr = { scale = scale, pairs = pairs_ },
      x = { x = { { t, h, d }, T.list(t * h * d, T.normal) }, pos = { { t }, pos, "i32" },
        freq = { { p }, T.list(p, function(j) return T.f32(10000 ^ (-(j - 1) / p)) end) } } }
  end
  for pairs_ = 0, 1 do
    case(1, 1, 2, 1, pairs_, 1, 0)
    case(5, 3, 64, 32, pairs_, 1, 0)
    case(3, 2, 34, 17, pairs_, 1, 100)
    case(2, 2, 80, 16, pairs_, 1.25, 4095) -- part of the head, and a factor
    case(4, 1, 7, 3, pairs_, 1, 131072)    -- an odd dim passes
    case(37, 9, 64, 32, pairs_, 1, 1000000)
    case(2, 3, 256, 128, pairs_, 1, 2147483600)
  end
  local x, pos = { { 2, 1, 4 }, T.list(8, T.normal) }, { { 2 }, { 0, 1 }, "i32" }
  local function freq(n) return { { n }, T.list(n, function() return 1 end) } end
  return {
    cases = cases, rows = { "x", "pos" }, in_place = "x", tol = { abs = 1e-6, rel = 4e-7 },
    call = function(C, s, y, v, a, err) return C.pl_rope(s, y, v.x, v.pos, v.freq, a.scale or 1,
      a.pairs or 0, err) end,
    ref = function(c, v)
      local t, h, d = unpack(c.y[1])
      local p, y = #v.freq, {}
      for i = 0, t * h - 1 do
        local pos_ = T.f32(v.pos[math.floor(i / h) + 1])
        for j = 1, d do y[i * d + j] = v.x[i * d + j] end
        for j = 0, p - 1 do
          local angle = T.f32(pos_ * v.freq[j + 1])
          local sin, cos = math.sin(angle) * c.attr.scale, math.cos(angle) * c.attr.scale
          local k, l = j, j + p
          if c.attr.pairs == 1 then k, l = 2 * j, 2 * j + 1 end
          local a, b = v.x[i * d + k + 1], v.x[i * d + l + 1]
          y[i * d + k + 1], y[i * d + l + 1] = a * cos - b * sin, b * cos + a * sin
        end
      end
      return y
    end,
    errors = {
      { x = { x = x, pos = pos, freq = freq(3) }, y = { { 2, 1, 4 } }, code = "PL_ESHAPE",
        text = "rope: 3 frequencies turn 6 dims, but x has 4" },
      { x = { x = x, pos = pos, freq = freq(2) }, y = { { 2, 1, 4 } }, attr = { pairs = 2 }, code = "PL_EARG",
        text = "rope: pairs 2, want 0 (halves) or 1 (neighbours)" },
      { x = { x = x, pos = { { 3 }, { 0, 1, 2 }, "i32" }, freq = freq(2) }, y = { { 2, 1, 4 } },
        code = "PL_ESHAPE",
        text = "rope: pos is [3] but T = 2 from x" },
      { x = { x = x, pos = { { 2 }, { 0, 1 } }, freq = freq(2) }, y = { { 2, 1, 4 } }, code = "PL_EDTYPE",
        text = "rope: pos is f32, want i32" },
    },
  }
end
