-- Drawings as SVG: plots below each other, of lines over an axis or of bars in groups.
local M = {}

local W, H, LEFT = 800, 150, 60
local colours = { "#07c", "#c60", "#393", "#939" }
local function safe(s) return (tostring(s):gsub("[<&>]", "?")) end

-- The frame of a plot whose upper edge is at y, with its title and its largest value.
local function frame(o, title, y, most)
  o[#o + 1] = ('<text x="%d" y="%d">%s</text>'):format(LEFT, y - 8, safe(title))
  o[#o + 1] = ('<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#999"/>'):format(LEFT, y, W, H)
  o[#o + 1] = ('<text x="%d" y="%d" text-anchor="end">%g</text><text x="%d" y="%d" text-anchor="end">0</text>')
    :format(LEFT - 5, y + 10, math.floor(most * 100 + 0.5) / 100, LEFT - 5, y + H)
end

local function lines(o, p, y, most)
  for k, l in ipairs(p.lines) do
    local points = {}
    for i, v in ipairs(l) do
      points[i] = ("%.1f,%.1f"):format(LEFT + v[1] / p.span * W, y + H - v[2] / most * H)
    end
    o[#o + 1] = ('<polyline fill="none" stroke="%s" points="%s"/>'):format(colours[k], table.concat(points, " "))
    if l.name then
      o[#o + 1] = ('<text x="%d" y="%d" fill="%s">%s</text>'):format(LEFT + 6, y + 14 * k, colours[k], safe(l.name))
    end
  end
  o[#o + 1] = ('<text x="%d" y="%d" text-anchor="end">%s</text>'):format(LEFT + W, y + H + 13, safe(p.axis))
end

local function bars(o, p, y, most)
  local group = W / #p.bars
  for i, b in ipairs(p.bars) do
    local width = group * 0.8 / #p.names
    for k, v in ipairs(b) do
      o[#o + 1] = ('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>'):format(
        LEFT + (i - 0.9) * group + (k - 1) * width, y + H - v / most * H, width, v / most * H, colours[k])
    end
    o[#o + 1] = ('<text x="%.1f" y="%d" text-anchor="middle" font-size="9">%s</text>'):format(LEFT + (i - 0.5) * group,
      y + H + 13, safe(b.label))
  end
  for k, name in ipairs(p.names) do
    o[#o + 1] = ('<text x="%d" y="%d" text-anchor="end" fill="%s">%s</text>'):format(LEFT + W - (#p.names - k) * 100,
      y - 8, colours[k], safe(name))
  end
end

--- A drawing of plots: { title =, most = (of the upward axis; not given: of the values), lines = { { { x, y }, ...,
--- name = (not given: none) } }, span = (of x), axis = (what stands below its end) }, or { title =, bars = { { label =,
--- value, ... } }, names = (of the bars of a group) }.
function M.draw(plots)
  local o = { ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif"'
    .. ' font-size="12">'):format(W + 80, #plots * (H + 40) + 10) }
  for k, p in ipairs(plots) do
    local y, most = (k - 1) * (H + 40) + 25, p.most or 1e-9
    for _, list in ipairs(not p.most and (p.lines or { p.bars }) or {}) do
      for _, v in ipairs(list) do
        for i = p.lines and 2 or 1, #v do most = math.max(most, v[i]) end
      end
    end
    frame(o, p.title, y, most);
    (p.lines and lines or bars)(o, p, y, most)
  end
  o[#o + 1] = "</svg>\n"
  return table.concat(o, "\n")
end

return M
