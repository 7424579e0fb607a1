-- A cache for eager calls: the same object that forward sees while it is traced, with real positions and
-- rows.
--   local kv = pl.kv { layers = 2, heads = 2, key_dim = 16, value_dim = 16, context = 256 }
--   local ids = kv:begin { 1, 2, 3 }   ...ops...   kv:commit()
local abi, err, schema, tensor, dev = require "pl.abi", require "pl.err", require "pl.schema",
  require "pl.tensor", require "pl.dev"
local arg, cache = require "pl.arg", require "pl.cache"
local C = abi.C
local M = {}

local Kv = {}
Kv.__index = Kv

local whole = schema.whole
local fields = { "layers", "heads", "key_dim", "value_dim", layers = whole(1), heads = whole(1),
  key_dim = whole(1),
  value_dim = whole(1), page = whole(16), context = whole(1), dtype = { f32 = true, bf16 = true, fp8 = true } }

function M.options(o)
  local k = abi.new "pl_kv_opts"
  k.layers, k.heads, k.key_dim, k.value_dim = o.layers, o.heads, o.key_dim, o.value_dim
  k.page, k.dtype, k.n_pages = o.page or 64, abi.dtype[cache.formats[o.dtype or "bf16"]], o.n_pages
    or math.ceil((o.context or 4096) / (o.page or 64))
  if o.dtype == "fp8" then k.scale = C.PL_SCALE_TOKEN end
  return k
end

--- pl.kv { layers =, heads =, key_dim =, value_dim =, page =, context =, dtype = "bf16" | "f32" | "fp8" }: one
--- sequence's cache; fp8 has a scale per token and head.
function M.kv(o)
  o = schema.check("kv", fields, o)
  local out, seq = abi.new "pl_kv *[1]", abi.new "int32_t[1]"
  abi.check(C.pl_kv_open(out, dev.get().ptr, M.options(o), abi.err))
  local kv = setmetatable({ is_kv = true, ptr = abi.gc(out[0], C.pl_kv_close), layers = o.layers,
    heads = o.heads, key_dim = o.key_dim,
    value_dim = o.value_dim }, Kv)
  abi.check(C.pl_kv_seq_new(kv.ptr, 0, seq, abi.err))
  kv.seq = seq[0]
  return kv
end

--- The next tokens (a list of ids): takes pages for them. Sets kv.pos and kv.rows (the last row); returns the
--- ids tensor.
function Kv:begin(ids)
  if self.begun then err.raise "kv: begin within a step; commit or abort comes first" end
  local span, from, pos = abi.new "pl_span[1]", self:len(), {}
  span[0].seq, span[0].n = self.seq, #ids
  local ok, code = abi.check(C.pl_kv_begin(self.ptr, span, 1, abi.err))
  if not ok then err.raise(("kv: no pages for %d more tokens"):format(#ids), nil, code) end
  self.begun = true
  for i = 1, #ids do pos[i] = from + i - 1 end
  self.pos, self.rows = tensor.new(pos, "i32"), tensor.new({ #ids - 1 }, "i32")
  return tensor.new(ids, "i32")
end
function Kv:append(k, v) return require("pl.op").kv_append(self, k, v) end
--- The step's tokens are part of the sequence now; abort forgets them.
function Kv:commit()
  if not self.begun then err.raise "kv: commit without begin" end
  self.begun = false
  local refused = abi.check(C.pl_kv_commit(self:opened(), abi.err))
  if refused > 0 then err.raise("kv: a page of this cache was given to someone else", nil, "ETAG") end
end
function Kv:abort()
  C.pl_kv_abort(self:opened())
  self.begun = false
end
function Kv:len() return tonumber(C.pl_kv_seq_len(self:opened(), self.seq)) end
--- The C side's cache; raises if this one is closed.
function Kv:opened() return self.ptr or err.raise "kv: this cache is closed" end
function Kv:close()
  if self.ptr then C.pl_kv_close(abi.gc(self.ptr, nil)) end
  self.ptr = nil
end

local function not_open(kv)
  if type(kv) ~= "table" or getmetatable(kv) ~= Kv then
    return ("called on %s, want a cache (with a colon)"):format(schema.show(kv))
  end
  if not kv.ptr then return "this cache is closed" end
end
arg.methods("kv", Kv, not_open, { begin = { "ids", schema.list(whole(0)) }, append = { "k", arg.any, "v", arg.any },
  commit = {}, abort = {}, len = {} })
arg.methods("kv", Kv, function(kv) if type(kv) ~= "table" or kv.ptr then return not_open(kv) end end, { close = {} })
M.kv = arg.check("kv", "pl.kv", { "o", "table" }, nil, M.kv)

return M
