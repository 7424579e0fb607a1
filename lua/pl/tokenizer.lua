-- Tokenizers: of a GGUF or packed file, of a directory with tokenizer.json (or tiktoken.model), or of one such file.
local abi, err = require "pl.abi", require "pl.err"
local arg, schema = require "pl.arg", require "pl.schema"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

local Tok = {}
Tok.__index = Tok

local function wrap(out)
  return setmetatable({ ptr = abi.gc(out[0], C.pl_tok_close), bos = C.pl_tok_bos(out[0]),
    eos = C.pl_tok_eos(out[0]), size = C.pl_tok_size(out[0]) }, Tok)
end

-- Raises what C said of a path, which that may not name.
local function told(rc, path)
  check(rc, rc < 0 and not abi.string(e.msg):find(path, 1, true) and { path } or nil)
end

function M.open(path, checkpoint)
  local out, checkpoints = abi.new "pl_tok *[1]", require "pl.checkpoint"
  if checkpoint or checkpoints.is_file(path) then
    local c = checkpoint or checkpoints.open(path)
    local rc = C.pl_tok_open_ckpt(out, c.ptr, e)
    if not checkpoint then c:close() end
    told(rc, path)
  else
    checkpoints.need(path)
    told(C.pl_tok_open_hf(out, path, e), path)
  end
  return wrap(out)
end

--- One that is open already, perhaps in another thread.
function M.of(ptr)
  local out = abi.new("pl_tok *[1]", { abi.cast("pl_tok *", ptr) })
  C.pl_tok_keep(out[0])
  return wrap(out)
end

-- grown once, used by every call
local ids_of, text_of = abi.gc(abi.new "pl_ids", C.pl_ids_free), abi.gc(abi.new "pl_text", C.pl_text_free)

--- Ids of a text. o.specials: names of special tokens in it become those tokens; o.bos: with what the model
--- expects in front.
function Tok:encode(text, o)
  local flags = (o and o.specials and C.PL_TOK_SPECIALS or 0) + (o and o.bos and C.PL_TOK_BOS or 0)
  ids_of.n = 0
  check(C.pl_tok_encode(self.ptr, ids_of, text, #text, flags, e))
  local out = {}
  for i = 1, ids_of.n do out[i] = ids_of.id[i - 1] end
  return out
end

--- Text of ids; o.specials: special tokens are written out.
function Tok:decode(ids, o)
  text_of.n = 0
  check(C.pl_tok_decode(self.ptr, text_of, abi.array("int32_t", ids), #ids, o and o.specials
    and C.PL_TOK_SPECIALS or 0, e))
  return abi.string(text_of.data, text_of.n)
end

--- A function that gives the text that a token adds, whole characters only; called with nil at the end.
function Tok:stream()
  local state = abi.new "pl_tok_stream"
  return function(id)
    local bad = id ~= nil and schema.wrong(id, schema.whole(0))
    if bad then err.raise("stream: id is " .. bad) end
    if not self.ptr then err.raise "this tokenizer is closed" end
    text_of.n = 0
    if id then check(C.pl_tok_stream_put(self.ptr, state, text_of, id, 0,
      e)) else check(C.pl_tok_stream_end(self.ptr, state, text_of, e)) end
    return abi.string(text_of.data, text_of.n)
  end
end

--- Id of a token as the file spells it, or nil.
function Tok:find(name)
  local id = C.pl_tok_find(self.ptr, name, #name)
  return id >= 0 and id or nil
end
--- A token as the file spells it, or nil.
function Tok:name(id)
  local n = abi.new "int32_t[1]"
  return abi.text(C.pl_tok_name(self.ptr, id, n), n[0])
end
function Tok:is_special(id) return C.pl_tok_is_special(self.ptr, id) end

local Closed = arg.closed "tokenizer"

function Tok:close()
  C.pl_tok_close(abi.gc(self.ptr, nil))
  self.ptr = false
  setmetatable(self, Closed)
end

Tok.__tostring = function(t) return ("tokenizer of %d tokens"):format(t.size) end

local function options(...)
  local fields = {}
  for _, k in ipairs { ... } do fields[k] = "boolean" end
  return function(o)
    if type(o) ~= "table" then return schema.show(o) .. ", want a table" end
    schema.check("options", fields, o)
  end
end
arg.handles("tokenizer", Tok, "ptr")
local id = schema.whole(0)
arg.functions("tokenizer", M, { open = { "path", "string", "checkpoint?", "table" } })
arg.methods("tok", Tok, arg.object("tokenizer", Tok, Closed), {
  encode = { "text", "string", "o?", options("specials", "bos") },
  decode = { "ids", schema.list(id, 0), "o?", options "specials" },
  stream = {}, find = { "name", "string" }, is_special = { "id", id }, name = { "id", id }, close = {} })
return M
