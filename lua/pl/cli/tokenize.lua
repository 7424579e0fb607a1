-- perilune tokenize: text on stdin to ids on stdout, or back.
local common, json = require "pl.cli.common", require "pl.json"
local err, file = require "pl.err", require "pl.file"
local M = { name = "tokenize", takes = "MODEL", about = "text to token ids, and back" }

function M.options(p)
  p:argument("model", "A GGUF file, or a directory with tokenizer files.")
  p:flag("--lines", "A JSON string a line in, an array of ids a line out (with --decode: the other way).")
  p:flag("--specials", "Names of special tokens in the text become those tokens (--decode always writes them).")
  p:flag("--bos", "With the tokens that the model expects in front.")
  p:flag("--decode", "Ids in, text out.")
  common.json(p)
end

local function ids_of(tok, text)
  local ids = {}
  for n in text:gmatch "[^%s,%[%]]+" do
    local id = tonumber(n)
    if not id or id % 1 ~= 0 or id < 0 or id >= tok.size then
      local shown = require("pl.cli.args").show(n)
      error(err.new(("token %d: %s, want an id below %d"):format(#ids + 1, shown, tok.size)), 0)
    end
    ids[#ids + 1] = id
  end
  return ids
end

function M.run(o)
  common.only(o, not o.decode, "not with --decode", { "specials", "bos" })
  common.only(o, not o.lines, "--lines writes JSON anyway", { "json" })
  local tok = require("pl.tokenizer").open(o.model)
  common.reads_stdin(o.lines and "lines of JSON" or o.decode and "ids" or "text")
  local how = { specials = o.specials, bos = o.bos }
  local function one(text)
    if o.decode then return tok:decode(ids_of(tok, text), { specials = true }) end
    return json.list(tok:encode(text, how))
  end
  if o.lines then
    local n = 0
    for line in file.lines(file.line) do
      n = n + 1
      if line:find "%S" then
        local text = line
        if not o.decode then
          local ok, v = pcall(json.decode, "[" .. line .. "]")
          if not ok or type(v[1]) ~= "string" or #v ~= 1 then
            error(err.new(("line %d is not a JSON string"):format(n)), 0)
          end
          text = v[1]
        end
        io.write(json.encode(one(text)), "\n")
      end
    end
  else
    local r = one(file.all(io.stdin, "standard input", file.text))
    if o.json then
      print(json.encode(o.decode and { text = r } or { tokens = r }))
    elseif o.decode then io.write(r)
    else print(table.concat(r, " ")) end
  end
  tok:close()
  return 0
end

return M
