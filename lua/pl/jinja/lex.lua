-- From a template's text to tokens, by Jinja's rules for white space: a newline behind a block is dropped, as is the
-- white space before it on its line; "-" strips all, "+" keeps all. A token: { t, v, line }, t one of data, var_begin,
-- var_end, block_begin, block_end, name, string, int, float, op, end.
local base, text = require "pl.jinja.base", require "pl.jinja.text"
local find, sub, match = string.find, string.sub, string.match
local M = {}

local pairs_of = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local closers = { [")"] = true, ["]"] = true, ["}"] = true }
local operators = { ["//"] = true, ["**"] = true, ["=="] = true, ["!="] = true, [">="] = true, ["<="] = true }
for c in ("+-/*%~[](){}><=.:|,;"):gmatch "." do operators[c] = true end

local escapes = { n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\", ["'"] = "'",
  ['"'] = '"', ["\n"] = "" }

local function syntax(line, fmt, ...)
  base.R.line = line
  base.fail("syntax", fmt, ...)
end
M.syntax = syntax

-- A string as Python's escapes say it.
local function unescape(s, line)
  if not find(s, "\\", 1, true) then return s end
  local out, at = {}, 1
  while true do
    local i = find(s, "\\", at, true)
    if not i then break end
    out[#out + 1] = sub(s, at, i - 1)
    local c = sub(s, i + 1, i + 1)
    local digits = c == "x" and 2 or c == "u" and 4 or c == "U" and 8
    if digits then
      local hex = match(s, "^%x+", i + 2)
      hex = hex and sub(hex, 1, digits)
      if not hex or #hex < digits then syntax(line, "truncated \\%s escape", c) end
      local u = tonumber(hex, 16)
      if u > 0x10FFFF then syntax(line, "illegal Unicode character") end
      out[#out + 1], at = text.char(u), i + 2 + digits
    elseif find(c, "[0-7]") then
      local oct = match(sub(s, i + 1, i + 3), "^[0-7]+")
      out[#out + 1], at = text.char(tonumber(oct, 8)), i + 1 + #oct
    elseif c == "N" then
      syntax(line, "\\N escapes are not known here")
    else
      out[#out + 1], at = escapes[c] or "\\" .. c, i + 2
    end
  end
  out[#out + 1] = sub(s, at)
  return table.concat(out)
end

-- As much of s as is letters, digits and underscores.
local function word(s)
  local cs, n = text.chars(s)
  for i = 1, n do
    local g = text.category(cs[i])
    if cs[i] ~= "_" and not (g >= 1 and g <= 5 or g >= 9 and g <= 11) then return table.concat(cs, "", 1, i - 1) end
  end
  return s
end

local function lines_in(s)
  local n, at = 0, 0
  while true do
    at = find(s, "\n", at + 1, true)
    if not at then return n end
    n = n + 1
  end
end

-- A number at `at`: type, value, next place; or nil.
local function number(s, at)
  local prefix = match(s, "^0[xXoObB]", at)
  if prefix then
    local radix = ({ x = 16, o = 8, b = 2 })[sub(prefix, 2):lower()]
    local digits = match(s, "^[%x_]+", at + 2)
    local v = digits and tonumber((digits:gsub("_", "")), radix)
    if v then return "int", v, at + 2 + #digits end
  end
  local digits = match(s, "^%d[%d_]*", at)
  if not digits then return nil end
  local stop = at + #digits
  if sub(s, at - 1, at - 1) ~= "." then
    local fraction = match(s, "^%.%d[%d_]*", stop) or ""
    local exponent = match(s, "^[eE][+-]?%d[%d_]*", stop + #fraction) or ""
    if fraction ~= "" or exponent ~= "" then
      local all = (digits .. fraction .. exponent):gsub("_", "")
      return "float", base.float(tonumber(all)), stop + #fraction + #exponent
    end
  end
  return "int", require("pl.jinja.json").integer((digits:gsub("_", ""))), stop
end

--- Tokens of a template.
function M.tokens(source)
  source = source:gsub("\r\n", "\n"):gsub("\r", "\n")
  if sub(source, -1) == "\n" then source = sub(source, 1, -2) end
  local out, line, at, line_start = {}, 1, 1, true
  local function add(t, v) out[#out + 1] = { t = t, v = v, line = line } end

  -- Text in front of a tag, stripped as the tag says.
  local function data(s, sign, is_block)
    local stripped = s
    if sign == "-" then
      stripped = text.rstrip(s)
    elseif sign ~= "+" and is_block then
      local before = match(s, "^.*\n()") or 1
      if (before > 1 or line_start) and text.skip_space(s, before) > #s then stripped = sub(s, 1, before - 1) end
    end
    if stripped ~= "" then add("data", stripped) end
    line = line + lines_in(s)
  end

  -- Past a tag's end: what follows it is dropped as the tag says.
  local function past(stop, sign, newline)
    local from = stop
    if sign == "-" then stop = text.skip_space(source, stop)
    elseif newline and sign ~= "+" and sub(source, stop, stop) == "\n" then stop = stop + 1 end
    line = line + lines_in(sub(source, from, stop - 1))
    line_start = sub(source, stop - 1, stop - 1) == "\n"
    return stop
  end

  -- Tokens up to the end of a tag; returns the place behind it.
  local function expression(close, kind)
    local open = {}
    while true do
      local c = sub(source, at, at)
      if c == "" then return #source + 1 end
      if #open == 0 then
        local sign = match(source, kind == "block_end" and "^([-+]?)%%}" or "^(%-?)}}", at)
        if sign then
          add(kind)
          return past(at + #sign + 2, sign, kind == "block_end")
        end
      end
      local space = text.skip_space(source, at)
      if space > at then
        line = line + lines_in(sub(source, at, space - 1))
        at = space
      elseif find(c, "%d") then
        local t, v, stop = number(source, at)
        add(t, v)
        at = stop
      elseif find(c, "[%a_\128-\255]") then
        local name = match(source, "^[%w_\128-\255]+", at)
        if not text.ascii(name) then name = word(name) end
        if name == "" then syntax(line, "unexpected char '%s' at %d", match(source, "^.[\128-\191]*", at), at - 1) end
        add("name", name)
        at = at + #name
      elseif c == "'" or c == '"' then
        local stop = at + 1
        while true do
          stop = find(source, "[\\" .. c .. "]", stop)
          if not stop then syntax(line, "unexpected char %s at %d", c == "'" and [["'"]] or [['"']], at - 1) end
          if sub(source, stop, stop) == c then break end
          stop = stop + 2
        end
        local raw = sub(source, at + 1, stop - 1)
        add("string", unescape(raw, line))
        line = line + lines_in(raw)
        at = stop + 1
      else
        local op = sub(source, at, at + 1)
        if not operators[op] then op = c end
        if not operators[op] then syntax(line, "unexpected char '%s' at %d", c, at - 1) end
        if pairs_of[op] then
          open[#open + 1] = pairs_of[op]
        elseif closers[op] then
          local want = table.remove(open)
          if not want then syntax(line, "unexpected '%s'", op) end
          if want ~= op then syntax(line, "unexpected '%s', expected '%s'", op, want) end
        end
        add("op", op)
        at = at + #op
      end
    end
  end

  while at <= #source do
    local i = find(source, "{[{%%#]", at)
    if not i then
      add("data", sub(source, at))
      line = line + lines_in(sub(source, at))
      break
    end
    local c = sub(source, i + 1, i + 1)
    local sign = match(source, "^[-+]", i + 2) or ""
    local raw, raw_sign, after = match(source, "^{%%[-+]?%s*raw%s*()(%-?)%%}()", i)
    data(sub(source, at, i - 1), sign, c ~= "{")
    if c == "%" and raw then
      local begun = line
      at = past(after, raw_sign, false)
      line = line + lines_in(sub(source, i, after - 1))
      -- up to {% endraw %}
      local e, before, behind, stop = at
      while true do
        e = find(source, "{%", e, true)
        if not e then syntax(begun, "Missing end of raw directive") end
        before, behind, stop = match(source, "^{%%([-+]?)%s*endraw%s*([-+]?)%%}()", e)
        if stop then break end
        e = e + 2
      end
      data(sub(source, at, e - 1), before, true)
      line = line + lines_in(sub(source, e, stop - 1))
      at = past(stop, behind, true)
    elseif c == "#" then
      local from = i + 2 + #sign
      local e = find(source, "#}", from, true)
      if not e then syntax(line, "Missing end of comment tag") end
      local last = e > from and match(source, "^[-+]", e - 1) or ""
      line = line + lines_in(sub(source, from, e))
      at = past(e + 2, last, true)
    elseif c == "{" then
      add "var_begin"
      at = i + 2 + #sign
      at = expression("}}", "var_end")
    else
      add "block_begin"
      at = i + 2 + #sign
      at = expression("%}", "block_end")
    end
  end
  add "end"
  return out
end

return M
