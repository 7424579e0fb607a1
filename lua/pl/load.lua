-- From a checkpoint to a device: every weight that a program uses is found, compared with what the recipe
-- says, turned into the pool's format, and packed where it takes part in products.
local err, sym = require "pl.err", require "pl.sym"
local M = {}

-- Checkpoint tensors that no model computes with.
local ignored = { "%.rotary_emb%.inv_freq$", "^rope_freqs%.weight$", "^rope_factors_", "%.attn%.bias$",
  "%.masked_bias$" }

local function is_ignored(name, patterns)
  for _, p in ipairs(patterns) do if name:find(p) then return true end end
  return false
end

local function same(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end

--- Compare a traced model with a checkpoint: every weight is there, in the right shape and a known format,
--- and none is left over (a forgotten bias would be a wrong answer, not an error). Returns infos by weight
--- name.
function M.check(model, trace, checkpoint)
  local infos, used, wanted = {}, {}, {}
  for _, w in ipairs(model.weight_list) do wanted[checkpoint:name_of(w.weight)] = true end
  for _, w in ipairs(trace.used) do
    local own = checkpoint:name_of(w.weight)
    local i = checkpoint.info(own)
    if not i then checkpoint:missing(w.weight, { file = w.file or model.box.name, line = w.line }, wanted) end
    if not i.dtype then
      err.raise_at(w, ("%s has format %s, which perilune does not read"):format(own, tostring(i.format)))
    end
    if not same(i.shape, w.shape) then
      err.raise_at({ file = w.file or model.box.name, line = w.line },
        ("weight %s is %s, but the checkpoint has %s"):format(w.weight,
        sym.sizes(w.shape), sym.sizes(i.shape)), { ("%s in %s"):format(own, checkpoint.path) })
    end
    infos[w.weight], used[own] = i, true
  end
  local left = {}
  local patterns = model.recipe.unused -- of the recipe: matched in its box
  local function is_unused(name) return model.box:call(is_ignored, name, patterns) end
  for _, name in ipairs(checkpoint.all()) do
    if not used[name] and not is_ignored(name, ignored) and not (#patterns > 0 and is_unused(name))
      and not (name == "lm_head.weight" and rawget(model.dims, "tied")) then
      left[#left + 1] = name
    end
  end
  if #left > 0 then
    err.raise_at({ file = model.box.name },
      ("the checkpoint has %d weights that the recipe does not use"):format(#left),
      { (err.known(left):gsub("^known", "unused")), "if that is right, name them in the recipe's `unused`" })
  end
  return infos
end

-- Bytes up to which a weight that takes part in no product is copied: left in the file, each norm of a few kB keeps the
-- 2 MB around it in memory, where the kernel holds files in large pages.
M.SMALL = 2 ^ 16
local plain = { f32 = true, f16 = true, bf16 = true }

-- Rows of each head from pairwise order (0, 1, 2, ...: even and odd members of a pair side by side) to
-- half-split.
local function half_split(abi, n, heads)
  local map, d = abi.array("int32_t", n), n / heads
  for r = 0, n - 1 do
    local head, j = math.floor(r / d), r % d
    map[r] = head * d + (j < d / 2 and 2 * j or 2 * (j - d / 2) + 1)
  end
  return map
end

local function converted(abi, t, dtype) -- through float, as pl_copy does not read block formats
  local n = t:count()
  local y, v = require("pl.tensor").empty(t.shape, dtype), abi.array("float", n)
  abi.check(abi.C.pl_tensor_get_f32(t, v, n, abi.err))
  abi.check(abi.C.pl_tensor_set_f32(y, v, n, abi.err))
  return y
end

-- What is added to a weight's values, and the heads whose rows are put half-split, if any.
local function changes(w, checkpoint)
  return checkpoint.format == "hf" and w.options.plus or nil,
    checkpoint.format == "gguf" and w.product and w.options.pairs or nil
end

--- What loading does to a weight, in words that are the same for the same: a packed file keeps them.
function M.how(w, pool, checkpoint)
  local plus, heads = changes(w, checkpoint)
  return ("%s, %s%s%s"):format(w.product and "packed" or "rows", pool:format_of(w),
    plus and (", plus %.9g"):format(plus) or "", heads and (", half-split %d"):format(heads) or "")
end

--- Take one weight from a checkpoint, as a pool wants it; done(tensor, name in the checkpoint) gets it as its own if it
--- returns true.
function M.one(w, pool, checkpoint, dev, infos, done)
  local abi, tensor = require "pl.abi", require "pl.tensor"
  local C, e, check = abi.C, abi.err, abi.check
  if C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
  local i = infos[w.weight]
  local t = checkpoint.take(i.index)
  local name = checkpoint:name_of(w.weight)
  local rc = C.pl_ckpt_check_values(t, e)
  if rc < 0 then check(rc, { "weight " .. name, checkpoint.path }) end
  local format = pool:format_of(w)
  local plus, heads = changes(w, checkpoint)
  if plus or format ~= "stored" and format ~= i.dtype then
    local y = converted(abi, t, format == "stored" and "f32" or format)
    if plus then
      local v = y:values()
      for j = 1, #v do v[j] = v[j] + plus end
      tensor.set(y, v)
    end
    t:close()
    t = y
  end
  if w.product then
    local y = tensor.handle()
    check(C.pl_dev_pack(dev.ptr, y, t, heads and half_split(abi, w.shape[1], heads) or nil, e), { "weight " .. name })
    t:close()
    t = y
    checkpoint.drop(i.index)
  end
  if not done(t, name) then t:close() end
end

-- A packed file's weights are there as they are: what was done to them is compared with what would be.
local function mapped(trace, pool, checkpoint, dev, infos)
  local abi, pack = require "pl.abi", require "pl.pack"
  local rc, out = abi.C.pl_ckpt_check_layouts(checkpoint.ptr, dev.ptr, abi.err), {}
  if rc == abi.C.PL_ESTALE then pack.stale(checkpoint.path, abi.string(abi.err.msg)) end
  abi.check(rc)
  for _, w in ipairs(trace.used) do
    local i, how = infos[w.weight], M.how(w, pool, checkpoint)
    if i.how ~= how then
      pack.stale(checkpoint.path, ("weight %s is '%s', but the recipe wants '%s'"):format(w.weight, i.how, how),
        checkpoint.recipe or nil)
    end
    out[w] = checkpoint.take(i.index)
  end
  return out
end

-- For eager calls: the tensors that hold the order of others' columns.
local function with_orders(tensors)
  local order_of = require("pl.tensor").order_of
  for w, t in pairs(tensors) do
    if w.order then order_of[t] = tensors[w.order] end
  end
  return tensors
end

--- Load the weights that a trace uses; returns tensors by weight symbol, and bytes as they are held now.
--- progress(done, total) is called after each, if given.
function M.run(model, trace, pool, checkpoint, dev, progress)
  local abi, out = require "pl.abi", {}
  local infos = M.check(model, trace, checkpoint)
  if checkpoint.packed then return with_orders(mapped(trace, pool, checkpoint, dev, infos)) end
  -- the largest first: a weight and its source are both in memory for a moment, which costs least at the
  -- beginning
  local order = { unpack(trace.used) }
  table.sort(order, function(a, b)
    local x, y = infos[a.weight], infos[b.weight]
    if x.bytes ~= y.bytes then return x.bytes > y.bytes end
    return x.index < y.index
  end)
  for k, w in ipairs(order) do
    M.one(w, pool, checkpoint, dev, infos, function(t)
      local i = infos[w.weight]
      if not w.product and i.bytes <= M.SMALL and plain[i.dtype] then
        local y = converted(abi, t, t:type())
        t:close()
        t = y
        checkpoint.drop(-1)
      end
      out[w] = t
      return true
    end)
    if progress then progress(k, #order) end
  end
  checkpoint.drop(-1)
  return with_orders(out)
end

return M
