-- Weights as a recipe declares them: class, name in the checkpoint, shape, the axis that ranks share.
local err, sym, schema = require "pl.err", require "pl.sym", require "pl.schema"
local M = {}

local options = {
  -- GGUF files hold the rows of each of so many heads pairwise; loading puts them half-split
  pairs = schema.whole(1),
  plus = schema.number(-100, 100), -- added to each value of a Hugging Face checkpoint (GGUF files hold the sum)
}

--- pl.weight(class, name, shape, cut, { pairs =, plus = }). The class picks the pool's format for it; the
--- name is the Hugging Face one; cut = 1 or 2 says which axis ranks share.
function M.declare(class, name, shape, cut, opts)
  if type(class) ~= "string" or type(name) ~= "string" or type(shape) ~= "table" then
    err.raise("weight: want a class, a name and a shape",
      { "as in  pl.weight(\"mlp\", \"model.layers.0.mlp.up_proj.weight\", { d.ffn, d.dim }, 1)" })
  end
  for i = 1, #shape do
    local bad = schema.wrong(shape[i], schema.whole(1))
    if bad then err.raise(("weight %s: size %d is %s"):format(name, i, bad)) end
  end
  if #shape < 1 or #shape > 4 then err.raise(("weight %s: %d sizes, want 1 to 4"):format(name, #shape)) end
  if cut and not shape[cut] then
    err.raise(("weight %s: cut axis %s of %d"):format(name, schema.show(cut), #shape))
  end
  local file, line = err.where()
  return sym.handle(sym.new({ unpack(shape) }, name, { file = file, line = line, class = class,
    weight = name, cut = cut, options = opts and schema.check("weight " .. name, options, opts) or {} }))
end

-- "weights[0].attn.q"
local function path_of(at, k) return type(k) == "number" and ("%s[%g]"):format(at, k) or at .. "." .. k end

--- A plain copy of a tree of weights, and the records of all weights in it, each once, by name.
function M.collect(tree)
  local found, seen = {}, {}
  local function walk(t, at, depth)
    if depth > 8 then err.raise(("%s: tables nested too deeply, or within themselves"):format(at)) end
    local out = {}
    for k, v in next, t do
      if type(k) ~= "number" and type(k) ~= "string" then
        err.raise(("%s has an entry whose name is %s"):format(at, schema.show(k)))
      end
      local s, here = sym.of(v), path_of(at, k)
      if s and s.weight then
        out[k] = v
        if not seen[s] then
          seen[s] = true
          found[#found + 1] = s
        end
      elseif type(v) == "table" and not s then
        out[k] = walk(v, here, depth + 1)
      else
        err.raise(("%s: %s, want pl.weight(...) or a table of them"):format(here,
          s and "a tensor that is no weight" or schema.show(v)))
      end
    end
    return out
  end
  local copy = walk(tree, "weights", 1)
  table.sort(found, function(a, b)
    if a.weight ~= b.weight then return a.weight < b.weight end
    return (a.line or 0) < (b.line or 0)
  end)
  for i = 2, #found do
    local a, b = found[i - 1], found[i]
    if a.weight == b.weight then
      err.raise_at({ file = b.file or err.where(), line = b.line }, ("weight %s is declared twice"):format(b.weight),
        { a.line and ("first at line %d"):format(a.line) or nil, "share one weight by using the same value twice" })
    end
  end
  return copy, found
end

--- Where a checkpoint has sorted a weight's columns ("M.weight_order" beside "M.weight"), the weight gets `order`,
--- itself a weight, so that it is loaded and packed; order.same is the first one with the same values. Adds them to the
--- list.
function M.add_orders(list, checkpoint)
  local first = {}
  for k = 1, #list do
    local w = list[k]
    local i = w.weight:find "%.weight$" and checkpoint.info(w.weight .. "_order")
    if i and i.dtype == "i32" and #i.shape == 1 and i.shape[1] == w.shape[#w.shape] then
      local abi, t = require "pl.abi", checkpoint.take(i.index)
      local values = abi.text(abi.cast("const char *", t.data), t:count() * 4)
      t:close()
      w.order = sym.new({ w.shape[#w.shape] }, w.weight .. "_order", { file = w.file, line = w.line,
        class = w.class, weight = w.weight .. "_order", options = {}, dtype = "i32" })
      first[values] = first[values] or w.order
      w.order.same = first[values]
      list[#list + 1] = w.order
    end
  end
end

--- A collected tree again, with tables that complain about names they do not have.
function M.strict(tree, what)
  local out = {}
  for k, v in next, tree do
    out[k] = sym.is(v) and v or M.strict(v, path_of(what, k))
  end
  return schema.strict(what, out)
end

return M
