-- Weights as a recipe declares them: class, name in the checkpoint, shape, the axis that ranks share.
local err, sym, schema = require "pl.err", require "pl.sym", require "pl.schema"
local M = {}

local options = {
  -- GGUF files hold the rows of each of so many heads pairwise; loading puts them half-split
  pairs = "number",
  plus = "number",  -- added to each value of a Hugging Face checkpoint (GGUF files hold the sum)
}

--- pl.weight(class, name, shape, cut, { pairs =, plus = }). The class picks the pool's format for it; the
--- name is the Hugging Face one; cut = 1 or 2 says which axis ranks share.
function M.declare(class, name, shape, cut, opts)
  if type(class) ~= "string" or type(name) ~= "string" or type(shape) ~= "table" then
    err.raise("weight: want a class, a name and a shape",
      { "as in  pl.weight(\"mlp\", \"model.layers.0.mlp.up_proj.weight\", { d.ffn, d.dim }, 1)" })
  end
  for i = 1, #shape do
    local n = shape[i]
    if type(n) ~= "number" or n < 1 or n % 1 ~= 0 then
      err.raise(("weight %s: size %d is %s, want a whole number"):format(name, i, tostring(n)))
    end
  end
  if #shape < 1 or #shape > 4 then err.raise(("weight %s: %d sizes, want 1 to 4"):format(name, #shape)) end
  if cut and not shape[cut] then
    err.raise(("weight %s: cut axis %s of %d"):format(name, tostring(cut), #shape))
  end
  local file, line = err.where()
  return sym.new({ unpack(shape) }, name, { file = file or false, line = line or false, class = class,
    weight = name, cut = cut or false,
    options = opts and schema.check("weight " .. name, options, opts) or {} })
end

--- All weights in a tree of tables, each once, by name.
function M.list(tree)
  local found, seen = {}, {}
  local function walk(t, depth)
    if depth > 8 then err.raise("weights: tables nested too deeply") end
    for _, v in next, t do
      if sym.is(v) then
        if v.weight and not seen[v] then
          seen[v] = true
          found[#found + 1] = v
        end
      elseif type(v) == "table" and not seen[v] then
        seen[v] = true
        walk(v, depth + 1)
      end
    end
  end
  walk(tree, 1)
  table.sort(found, function(a, b) return a.weight < b.weight end)
  for i = 2, #found do
    if found[i].weight == found[i - 1].weight then
      err.raise(("weights: %s is declared twice"):format(found[i].weight),
        { "share one weight by using the same value twice" })
    end
  end
  return found
end

--- The tree again, with tables that complain about names they do not have.
function M.strict(tree, what)
  local out = {}
  for k, v in next, tree do
    if type(v) == "table" and not sym.is(v) then
      out[k] = M.strict(v, type(k) == "number" and ("%s[%d]"):format(what, k) or what .. "." .. tostring(k))
    else
      out[k] = v
    end
  end
  return schema.strict(what, out)
end

return M
