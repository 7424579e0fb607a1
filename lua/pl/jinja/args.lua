-- Arguments of calls: { n, [1..n] } by place, and by name a table (or nil) whose [0] lists the names in order.
local base = require "pl.jinja.base"
local fail = base.fail
local M = {}

--- Values of the named parameters, in their order; nil where nothing was given. "name!" has to be there.
function M.take(what, names, args, kw)
  if args.n > #names then
    fail("python", "%s takes at most %d arguments (%d given)", what, #names, args.n)
  end
  local out, used = {}, 0
  for i, name in ipairs(names) do
    local need = name:sub(-1) == "!"
    if need then name = name:sub(1, -2) end
    local v = args[i]
    if kw and kw[name] ~= nil then
      if v ~= nil then fail("python", "%s got multiple values for argument '%s'", what, name) end
      v, used = kw[name], used + 1
    end
    if v == nil and need then fail("python", "%s missing required argument: '%s'", what, name) end
    out[i] = v
  end
  if kw then
    if #kw[0] > used then
      for _, name in ipairs(kw[0]) do
        local known = false
        for _, k in ipairs(names) do known = known or k == name or k == name .. "!" end
        if not known then fail("python", "%s got an unexpected keyword argument '%s'", what, name) end
      end
    end
  end
  return unpack(out, 1, #names)
end

--- A function(name, parameters, f) that puts a filter into `into`, with its arguments in their order.
function M.definer(into)
  return function(name, names, f)
    into[name] = function(v, a, kw) return f(v, M.take(name .. "()", names, a, kw)) end
  end
end

--- A text argument, or an error; nil where None or nothing is allowed and given.
function M.text(what, v, optional)
  if optional and (v == nil or v == base.none) then return nil end
  local s = base.text(v)
  if s then return s end
  if base.kind(v) == "undefined" and v.cause then base.use_undefined(v) end
  fail("python", "%s: must be str, not %s", what, base.type_name(v))
end

function M.int(what, v, default)
  if v == nil then return default end
  local i = base.int(v)
  if i then return i end
  if base.kind(v) == "big" then fail("limit", "%s: an integer beyond 2^53", what) end
  fail("python", "%s: '%s' object cannot be interpreted as an integer", what, base.type_name(v))
end

return M
