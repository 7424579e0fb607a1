-- Checked tables: what a recipe or a caller may write in one, with the nearest name where it is misspelt.
local err = require "pl.err"
local M = {}

local function sorted(set)
  local n = {}
  for k in pairs(set) do n[#n + 1] = tostring(k) end
  table.sort(n)
  return n
end

--- What is wrong with v as `want` says it, or nil; and in which part of it, ".name" or "[2]". want: a type name
--- ("number", "table|function"), a set of allowed values, or a function(v) that answers this question.
function M.wrong(v, want)
  if type(want) == "function" then return want(v) end
  if type(want) == "table" then
    if want[v] then return nil end
    return ("%s, want one of %s"):format(M.show(v), table.concat(sorted(want), " "))
  end
  for t in want:gmatch "%a+" do
    if type(v) == t then return nil end
  end
  return ("%s, want a %s"):format(M.show(v), (want:gsub("|", " or a ")))
end

--- How a value is shown in an error: 'text', 12, a table.
function M.show(v)
  if type(v) == "string" then return "'" .. (#v > 40 and v:sub(1, 37) .. "..." or v) .. "'" end
  if v ~= v then return "nan" end
  if type(v) == "number" or type(v) == "boolean" or v == nil then return tostring(v) end
  return "a " .. type(v)
end

--- check(what, keys, t): a plain copy of t. keys[k] says what field k must be (see M.wrong). keys[1], keys[2],
--- ... name the fields that must be there.
function M.check(what, keys, t)
  if type(t) ~= "table" then err.raise(("%s: %s, want a table"):format(what, M.show(t))) end
  local out, names, given = {}, err.names(keys), {}
  for k in next, t do given[#given + 1] = k end
  table.sort(given, function(a, b) return tostring(a) < tostring(b) end) -- the same error every time
  for _, k in ipairs(given) do
    if type(k) ~= "string" or not keys[k] then err.unknown(what, tostring(k), names) end
    local bad, part = M.wrong(t[k], keys[k])
    if bad then err.raise(("%s.%s%s: %s"):format(what, k, part or "", bad)) end
    out[k] = t[k]
  end
  for _, k in ipairs(keys) do
    if out[k] == nil then err.raise(("%s: no '%s'"):format(what, k), { err.known(names) }) end
  end
  return out
end

-- What a value must be, for M.wrong ------------------------------------------------------------------------

function M.whole(least, most)
  return function(v)
    if type(v) ~= "number" or v % 1 ~= 0 or v < least then
      return ("%s, want a whole number of at least %d"):format(M.show(v), least)
    end
    if v > (most or 2 ^ 31 - 1) then return ("%s, want at most %d"):format(M.show(v), most or 2 ^ 31 - 1) end
  end
end

function M.number(least, most)
  return function(v)
    if type(v) ~= "number" or v ~= v or v < least or v > most then
      return ("%s, want a number from %g to %g"):format(M.show(v), least, most)
    end
  end
end

--- A list with `least` entries or more, each as `want` says.
function M.list(want, least)
  return function(v)
    if type(v) ~= "table" then return M.show(v) .. ", want a list" end
    if #v < (least or 1) then return ("a list of %d, want at least %d"):format(#v, least or 1) end
    for i = 1, #v do
      local bad = M.wrong(rawget(v, i), want)
      if bad then return bad, ("[%d]"):format(i) end
    end
  end
end

--- A table with these fields at least, each as it is said.
function M.having(keys)
  local names = sorted(keys)
  return function(v)
    if type(v) ~= "table" then return M.show(v) .. ", want a table" end
    for _, k in ipairs(names) do
      local bad, part = M.wrong(v[k], keys[k])
      if bad then return bad, "." .. k .. (part or "") end
    end
  end
end

--- A table with no field but these, each as it is said where it is there.
function M.only(keys)
  local names = sorted(keys)
  return function(v)
    if type(v) ~= "table" then return M.show(v) .. ", want a table" end
    local given = sorted(v)
    for _, k in ipairs(given) do
      local want = keys[k]
      if not want then return ("not known, want one of %s"):format(table.concat(names, " ")), "." .. k end
      local bad, part = M.wrong(v[k], want)
      if bad then return bad, "." .. k .. (part or "") end
    end
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
