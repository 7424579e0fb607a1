-- The front: threads with an interpreter each that turn texts into tokens while the engine goes on stepping. Both sides
-- are in this file: the thread's loop, which answers letters, and the engine's handle, which sends and receives them. A
-- letter has an id, a kind, a code and bytes. A new kind is a row of `kinds` and a handler.
local abi, arg, err = require "pl.abi", require "pl.arg", require "pl.err"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

M.kinds = {
  encode = 1, -- a text, code: PL_TOK_*; answered with its ids, int32
  decode = 2, -- ids, code: PL_TOK_*; answered with their text
  request = 3, -- a request's body, code: see pl.requests; answered with what it asks, or with an answer
}

-- The thread's side ------------------------------------------------------------------------------------------

M.LARGE = 2 ^ 18      -- bytes of a letter behind which there is much to clean up
local MEGABYTES = 512 -- of Lua memory, for one letter
local KEPT = 2 ^ 20   -- elements of a list that is kept for the next letter

--- Each kind's function(letter, tok): a pointer and the number of bytes of the answer, which is copied at once; a code,
--- if it is not PL_OK.
M.handlers = {}

local ids, text = abi.gc(abi.new "pl_ids", C.pl_ids_free), abi.gc(abi.new "pl_text", C.pl_text_free)

function M.handlers.encode(letter, tok)
  ids.n = 0
  check(C.pl_tok_encode(tok, ids, letter.data, letter.n, letter.code, e))
  return ids.id, ids.n * 4
end

function M.handlers.decode(letter, tok)
  text.n = 0
  check(C.pl_tok_decode(tok, text, abi.cast("const int32_t *", letter.data), letter.n / 4, letter.code, e))
  return text.data, text.n
end

local own_tok
function M.handlers.request(letter, tok)
  local said, code = require("pl.requests").answer(letter, function()
    own_tok = own_tok or require("pl.tokenizer").of(tok)
    return own_tok
  end)
  return said, #said, code
end

local function unknown(letter) err.raise(("front: a letter of kind %d"):format(letter.kind)) end

local function code_of(what)
  local name = err.is(what) and what.code
  return name and C["PL_" .. name] or what == "not enough memory" and C.PL_ENOMEM or C.PL_EARG
end

-- A letter's answer, put into the box: PL_OK, or what the box says.
local function reply(letter, answer, outbox, tok, f)
  local limit = require "pl.host.limit"
  answer.id, answer.kind, answer.code = letter.id, letter.kind, C.PL_OK
  limit(MEGABYTES * 2 ^ 20)
  local ok, data, n, code = limit(nil, pcall(f, letter, tok))
  if ok then
    answer.code = code or C.PL_OK
  else
    local what = data
    answer.code = code_of(what)
    data = err.is(what) and what.msg or tostring(what)
    if answer.code == C.PL_ENOMEM then collectgarbage() end -- LuaJIT does not by itself
    n = #data
  end
  answer.n, answer.data = n, abi.cast("char *", data)
  local rc = C.pl_mail_put(outbox, answer, 1e9, e)
  while rc == C.PL_ENOMEM do -- an answer there must be
    answer.code, answer.n = rc, 0
    rc = C.pl_mail_put(outbox, answer, 1e9, e)
  end
  return rc
end

--- What a thread does until its box is closed. An error is the answer to its letter.
function M.run(inbox, outbox, tok, seed)
  inbox, outbox, tok = abi.cast("pl_mail *", inbox), abi.cast("pl_mail *", outbox), abi.cast("const pl_tok *", tok)
  math.randomseed(seed)
  local names, letter, answer = {}, abi.new "pl_letter", abi.new "pl_letter"
  for name, kind in pairs(M.kinds) do names[kind] = name end
  while C.pl_mail_take(inbox, letter, 1e9, e) >= 0 do
    local rc = reply(letter, answer, outbox, tok, M.handlers[names[letter.kind]] or unknown)
    local bytes = tonumber(letter.n)
    C.pl_letter_free(letter)
    if ids.cap > KEPT then C.pl_ids_free(ids) end
    if text.cap > KEPT then C.pl_text_free(text) end
    if rc == C.PL_ECLOSED then return end
    if bytes > M.LARGE then -- what was made of it may be hundreds of megabytes, and the next letter come tomorrow
      collectgarbage()
      C.pl_host_trim()
    end
  end
end

-- The engine's side ------------------------------------------------------------------------------------------

local Front = {}
Front.__index = Front
local Closed = arg.closed "front"

local function box(cap)
  local out = abi.new "pl_mail *[1]"
  check(C.pl_mail_open(out, cap, e))
  return out[0]
end

--- o: { tok = a tokenizer, threads =, letters = how many may be on their way }. With 0 threads, nobody answers but who
--- takes from `inbox` and puts into `outbox`.
function M.open(o)
  local self = setmetatable({ inbox = box(o.letters), outbox = box(o.letters + o.threads),
    letter = abi.new "pl_letter" }, Front)
  local inbox, outbox, tok = self.inbox, self.outbox, o.tok.ptr
  C.pl_tok_keep(tok)
  local out, opts = abi.new "pl_front *[1]", abi.new "pl_front_opts"
  opts.module, opts.n_threads, opts["in"], opts.out, opts.tok = o.module or "pl.front", o.threads, inbox, outbox, tok
  local rc = C.pl_front_open(out, opts, e)
  local function done(p) -- one finalizer: the threads must have ended before what they use goes
    C.pl_front_close(p)
    C.pl_mail_free(inbox)
    C.pl_mail_free(outbox)
    C.pl_tok_close(tok)
  end
  if rc < 0 then
    done(nil)
    check(rc)
  end
  self.ptr, self.fd = abi.gc(out[0], done), C.pl_mail_fd(outbox)
  function self.close()
    done(abi.gc(self.ptr, nil))
    self.ptr, self.inbox, self.outbox, self.fd, self.close = nil, nil, nil, nil, nil
    setmetatable(self, Closed)
  end
  return self
end

--- Send a letter; nil and a code if the box is full.
function Front:ask(id, kind, code, data)
  local l = abi.new "pl_letter"
  l.id, l.kind, l.code, l.n, l.data = id, kind, code, #data, abi.cast("char *", data)
  return check(C.pl_mail_put(self.inbox, l, 0, e))
end

--- A letter that nobody is at yet is not answered any more.
function Front:drop(id) return C.pl_mail_drop(self.inbox, id) end

--- Hands the answers that are there to on[kind](object, letter); a letter is gone when that returns.
function Front:receive(on, object)
  while rawget(self, "ptr") and C.pl_mail_take(self.outbox, self.letter, 0, e) == 1 do
    local ok, what = pcall(on[self.letter.kind], object, self.letter)
    C.pl_letter_free(self.letter)
    if not ok then error(what, 0) end
  end
end

arg.handles("front", Front, "ptr", "inbox", "outbox")
arg.guard("front", Front, arg.object("front", Front, Closed))

return M
