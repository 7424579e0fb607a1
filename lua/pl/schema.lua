-- Checked tables: what a recipe or a caller may write in one, with the nearest name where it is misspelt.
local err = require "pl.err"
local M = {}

local function sorted(set)
  local n = {}
  for k in pairs(set) do n[#n + 1] = k end
  table.sort(n)
  return n
end

local function check_field(what, k, v, want)
  if type(want) == "function" then
    local bad = want(v)
    if bad then err.raise(("%s.%s: %s"):format(what, k, bad)) end
  elseif type(want) == "table" then
    if not want[v] then
      err.raise(("%s.%s: %s, want one of %s"):format(what, k, M.show(v), table.concat(sorted(want), " ")))
    end
  else
    for t in want:gmatch "%a+" do
      if type(v) == t then return end
    end
    err.raise(("%s.%s: %s, want a %s"):format(what, k, M.show(v), (want:gsub("|", " or a "))))
  end
end

--- How a value is shown in an error: 'text', 12, a table.
function M.show(v)
  if type(v) == "string" then return "'" .. (#v > 40 and v:sub(1, 37) .. "..." or v) .. "'" end
  if type(v) == "number" or type(v) == "boolean" or v == nil then return tostring(v) end
  return "a " .. type(v)
end

--- check(what, keys, t): a plain copy of t. keys[k] is a type name ("number", "table|function"), a set of
--- allowed values, or a function(v) that returns what is wrong. keys[1], keys[2], ... name the fields that
--- must be there.
function M.check(what, keys, t)
  if type(t) ~= "table" then err.raise(("%s: %s, want a table"):format(what, M.show(t))) end
  local out, names, given = {}, err.names(keys), {}
  for k in next, t do given[#given + 1] = k end
  table.sort(given, function(a, b) return tostring(a) < tostring(b) end) -- the same error every time
  for _, k in ipairs(given) do
    if type(k) ~= "string" or not keys[k] then err.unknown(what, tostring(k), names) end
    check_field(what, k, t[k], keys[k])
    out[k] = t[k]
  end
  for _, k in ipairs(keys) do
    if out[k] == nil then err.raise(("%s: no '%s'"):format(what, k), { err.known(names) }) end
  end
  return out
end

function M.whole(least)
  return function(v)
    if type(v) ~= "number" or v % 1 ~= 0 or v < least then
      return ("%s, want a whole number of at least %d"):format(M.show(v), least)
    end
    if v > 2 ^ 31 - 1 then return ("%s, want at most 2147483647"):format(M.show(v)) end
  end
end

--- A table that complains about names it does not have.
function M.strict(what, t)
  return setmetatable(t, { __metatable = false, __index = function(_, k)
    if type(k) == "number" then
      err.raise(("%s has no [%s]"):format(what, tostring(k)), #t > 0
        and { ("it has [%d] to [%d]"):format(rawget(t, 0) ~= nil and 0 or 1, #t) } or nil)
    end
    err.unknown(what, k, err.names(t))
  end })
end

return M
