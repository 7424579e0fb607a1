-- JSON: a small writer whose lists and objects are what they say (an empty list is [], numbers are exact),
-- and lua-cjson for reading.
local err, arg, schema = require "pl.err", require "pl.arg", require "pl.schema"
local M = {}

local list_mt = {}
--- Mark a table as a list, so that it is written as one even when it is empty.
function M.list(t) return setmetatable(t, list_mt) end
local raw_mt = {}
--- A value that is JSON already.
function M.raw(text) return setmetatable({ text = text }, raw_mt) end
M.null = setmetatable({}, { __tostring = function() return "null" end })

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
  ["\b"] = "\\b", ["\f"] = "\\f" }

-- Characters of UTF-8 as the standard defines it: no surrogates, no overlong forms.
local sequences = { "^[%z\1-\127]+()", "^[\194-\223][\128-\191]()", "^\224[\160-\191][\128-\191]()",
  "^[\225-\236\238\239][\128-\191][\128-\191]()", "^\237[\128-\159][\128-\191]()",
  "^\240[\144-\191][\128-\191][\128-\191]()", "^[\241-\243][\128-\191][\128-\191][\128-\191]()",
  "^\244[\128-\143][\128-\191][\128-\191]()" }
local function next_of(s, at)
  for i = 1, #sequences do
    local after = s:match(sequences[i], at)
    if after then return after end
  end
end

--- A text with U+FFFD for each byte that is no part of a character: what is written as JSON is UTF-8.
function M.utf8(s)
  if not s:find "[\128-\255]" then return s end
  local out, from, at = {}, 1, 1
  while at <= #s do
    local after = next_of(s, at)
    if not after then
      out[#out + 1], out[#out + 2] = s:sub(from, at - 1), "\239\191\189"
      from, after = at + 1, at + 1
    end
    at = after
  end
  if #out == 0 then return s end
  return table.concat(out) .. s:sub(from)
end

local function quote(s)
  s = M.utf8(s)
  return '"' .. s:gsub('[%c"\\\127]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end)
    .. '"'
end

local function number(v)
  if v ~= v or v == math.huge or v == -math.huge then return "null" end
  if v % 1 == 0 and math.abs(v) < 2 ^ 53 then return ("%d"):format(v) end
  local s = ("%.9g"):format(v)
  return tonumber(s) == v and s or ("%.17g"):format(v)
end

local function write(v, out, depth)
  if depth > 100 then err.raise "json: tables in each other more than 100 deep" end
  local t = type(v)
  if v == M.null or v == nil then out[#out + 1] = "null"
  elseif t == "string" then out[#out + 1] = quote(v)
  elseif t == "number" then out[#out + 1] = number(v)
  elseif t == "boolean" then out[#out + 1] = tostring(v)
  elseif t == "cdata" then out[#out + 1] = tostring(v):match "^%-?%d+" or err.raise("json: cannot write "
    .. tostring(v))
  elseif t == "table" and getmetatable(v) == raw_mt then out[#out + 1] = v.text
  elseif t == "table" and (getmetatable(v) == list_mt or #v > 0) then
    out[#out + 1] = "["
    for i = 1, #v do
      if i > 1 then out[#out + 1] = "," end
      write(v[i], out, depth + 1)
    end
    out[#out + 1] = "]"
  elseif t == "table" then
    local keys = {}
    for k in pairs(v) do
      if type(k) ~= "string" then err.raise(("json: a key is %s, want a text"):format(schema.show(k))) end
      keys[#keys + 1] = k
    end
    table.sort(keys)
    out[#out + 1] = "{"
    for i, k in ipairs(keys) do
      if i > 1 then out[#out + 1] = "," end
      out[#out + 1] = quote(k) .. ":"
      write(v[k], out, depth + 1)
    end
    out[#out + 1] = "}"
  else
    err.raise("json: cannot write " .. schema.show(v))
  end
end

function M.encode(v)
  local out = {}
  write(v, out, 0)
  return table.concat(out)
end

function M.decode(text)
  local ok, v = pcall(require("cjson").decode, text)
  if not ok then err.raise("json: " .. tostring(v)) end
  return v
end

arg.functions("json", M, { list = { "t", "table" }, raw = { "text", "string" }, encode = { "v", arg.any },
  utf8 = { "s", "string" }, decode = { "text", "string" } })

return M
