-- A page in other hands, as Lua sees it: the request that read it ends with its own reason, the record says whose page
-- it is, the neighbours go on; a recipe may say that the engine stops instead, or that nothing is checked.
local model, ffi = require "pl.model", require "ffi"
ffi.cdef [[ // tests/host.c
void pl_test_fault(pl_kv *kv, int32_t what, int64_t owner, int32_t index);
bool pl_test_struck(const pl_kv *kv); ]]
local FREE_REFERENCED = 1 -- core/fault.h
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local tiny, PROMPT, OUT = "tests/data/tiny-llama", 70, 8

local f = assert(io.open "recipes/llama.lua")
local text = f:read "*a"
f:close()
local function load(integrity)
  local file = os.tmpname() .. ".lua"
  local out = assert(io.open(file, "wb"))
  out:write((text:gsub("return pl.recipe {", "return pl.recipe {\n  integrity = pl.integrity " .. integrity .. ",", 1)))
  out:close()
  local m = model.load(tiny, { recipe = file, batch = 3, context = 256, prefix = false })
  os.remove(file)
  return m
end
local function submit(m, salt)
  local ids = {}
  for i = 1, PROMPT do ids[i] = (i * salt * 7) % 900 + 20 end
  return m:submit { ids = ids, max_tokens = OUT, ignore_eos = true }
end
local function answer(r) return table.concat(r.ids, " ") end

-- three requests, the second's first page is freed under it after two tokens; whether stepping raised, and what
local function strike(m)
  local r = { submit(m, 1), submit(m, 2), submit(m, 3) }
  while #r[2].ids < 2 do m:step() end
  ffi.C.pl_test_fault(m.engine.kv, FREE_REFERENCED, r[2].id, 0)
  local ok, e = pcall(function() while m:step() > 0 do end end)
  verdict(ffi.C.pl_test_struck(m.engine.kv), "the fault strikes")
  ffi.C.pl_test_fault(m.engine.kv, 0, 0, 0)
  return r, ok, tostring(e)
end

local m = load '{ check = "pages" }'
local alone = {}
for i = 1, 3 do
  local r = submit(m, i)
  while m:step() > 0 do end
  alone[i] = answer(r)
end
verdict(#m:incidents() == 0, "nothing is told of a clean run")
local r, ok = strike(m)
verdict(ok, "stepping goes on")
verdict(r[2].finish == "integrity" and alone[2]:find(answer(r[2]), 1, true) == 1 and #r[2].ids < OUT,
  "the victim ends with its own reason, and said nothing wrong: " .. tostring(r[2].finish))
verdict(answer(r[1]) == alone[1] and answer(r[3]) == alone[3], "the neighbours' answers are theirs")
local list = m:incidents()
local x = list[1] or { owners = {} }
verdict(#list == 1 and x.request == tonumber(r[2].id) and x.index == 0 and x.expected ~= x.found and x.recipe == "llama"
  and x.state == "free" and x.step > 0, "the record names the request, the page and its state")
verdict(#x.owners > 0 and x.owners[1].owner == x.request and x.owners[1].tag == x.expected,
  "the last owner is the request, under the tag that it expects")
list[1] = nil
verdict(#m:incidents() == 1, "the list is a copy")
verdict(m:metrics().pages.owned == 0 and m:metrics().finished.integrity == 1, "no page is lost, and it is counted")
m:close()

m = load '{ check = "pages", on_mismatch = "stop_engine" }'
local what
r, ok, what = strike(m)
verdict(not ok and what:find("stopped", 1, true), "the engine stops: " .. what)
verdict(r[1].finish == "cancelled" and r[3].finish == "cancelled", "nobody is answered any more")
local again, why = pcall(submit, m, 1)
verdict(not again and tostring(why):find("stopped", 1, true), "nor asked")
m:close()

m = load '{ check = "off" }'
r, ok = strike(m)
verdict(ok and r[2].finish == "length" and #m:incidents() == 0, "with no check nobody notices")
m:close()

verdicts.done()
