-- Options that several verbs share, and how they become arguments of pl.model.
local cli, file = require "pl.cli", require "pl.file"
local M = {}

M.acts = { "f32", "bf16", "int8", "int15" }
M.paths = { "auto", "portable", "avx2", "avx512", "amx", "soft-amx" }

-- What an option's value has to be: a function of the text, which returns the value, or nil, what is wanted instead and
-- which part of the text is wrong (nil: all of it).
local function whole(least, most)
  return function(s)
    local n = tonumber(s)
    if n and n % 1 == 0 and n >= least and n <= (most or 2 ^ 31 - 1) then return n end
    if most then return nil, ("want a whole number from %.0f to %.0f"):format(least, most) end
    return nil, n and n > 2 ^ 31 - 1 and "want a whole number of at most 2147483647"
      or ("want a whole number of at least %.0f"):format(least)
  end
end
M.whole = whole

--- A server's address.
function M.url(s)
  if s:find "^https?://[^/]" then return s end
  return nil, "want http://HOST:PORT"
end

function M.number(least, most)
  return function(s)
    local n = tonumber(s)
    if n and n >= least and n <= most then return n end
    return nil, ("want a number from %g to %g"):format(least, most)
  end
end

--- A list with commas, of what `check` takes.
function M.list(check)
  return function(s)
    local out = {}
    for part in (s .. ","):gmatch "([^,]*)," do
      local v, why = check(part)
      if v == nil then return nil, why, part end
      out[#out + 1] = v
    end
    return out
  end
end

function M.act(p)
  p:option("--kv", "Format of the cache. Default: the recipe's."):choices { "f32", "bf16", "fp8" }
  p:option("--kv-scale", "What shares a scale in an fp8 cache. Default: tensor."):choices { "tensor", "head", "token" }
  p:option("--kv-scales", "Scales of an fp8 cache, for tensor and head (see `perilune calibrate`)."):argname "FILE"
  p:option("--act", "What activations are rounded to before a product. Default: the recipe's."):choices(M.acts)
end

--- What lies behind the prefix cache.
function M.tiers(p)
  local bytes = whole(1, 2 ^ 53)
  p:option("--host-cache-bytes", "Pages that the cache gives up go on in so much host memory."):convert(bytes)
    :argname "N"
  p:option("--disk-cache", "And then in a file in this directory, which serves the same model again."):argname "DIR"
  p:option("--disk-cache-bytes", "The size of that file."):convert(bytes):argname "N"
end

--- Options of every verb that opens a model.
function M.model(p, no_act)
  local model = p:argument("model", "A GGUF file, a Hugging Face directory, a packed file (FILE.perilune), or a recipe"
    .. " (FILE.lua) with --weights.")
  p:option("--recipe", "The recipe to use: a file, or one of perilune's own. Default: by the metadata.")
    :argname "FILE"
  p:option("--weights", "With a recipe as MODEL: the GGUF file or directory to load."):argname "PATH"
  if not no_act then M.act(p) end
  return model
end

--- Options of every verb that computes; bare: without defaults, so that it is known what was given; no_act: without
--- those of formats.
function M.compute(p, bare, no_act)
  local model = M.model(p, no_act)
  p:option("--threads", "CPU threads; 0 = one per core. Default: what the recipe says, or 0.")
    :convert(whole(0, 1024)):argname "N"
  local path = p:option("--path", "CPU code path; one that the machine lacks is an error."):choices(M.paths)
  if not bare then
    path:default "auto"
  end
  return model
end

function M.prompt(p)
  p:option("--prompt", "The text."):argname "TEXT"
  p:option("--file", "Read the text from a file; - is standard input. At most 64 MB."):argname "FILE"
  p:option("--ids", "Token ids in place of a text: 1,2,3."):argname "IDS"
end

--- How the next token is drawn; without a word, the likeliest one.
local draws = {
  { "--temperature", "0 = always the likeliest token.", M.number(0, 100), "T" },
  { "--top-p", "Only the likeliest tokens that make up P together.", M.number(1e-6, 1), "P" },
  { "--min-p", "Only tokens at least P times as likely as the likeliest.", M.number(0, 1), "P" },
  { "--top-k", "Only the K likeliest tokens; 0 = all.", whole(0), "K" },
  { "--repetition-penalty", "Above 1: seen tokens are less likely.", M.number(0.01, 100), "X" },
  { "--seed", "The same seed gives the same text.", whole(0, 2 ^ 53), "S" },
}
function M.sampling(p)
  for _, d in ipairs(draws) do p:option(d[1], d[2]):convert(d[3]):argname(d[4]) end
end
--- Those that were given, in `into`.
function M.sampling_of(o, into)
  for _, d in ipairs(draws) do
    local name = d[1]:sub(3):gsub("-", "_")
    into[name] = o[name]
  end
  return into
end

--- Where the time of the last steps goes.
local PROF_STEPS = 1000
function M.prof(p)
  p:option("--prof", ("Trace the last %d steps, into a JSON file for chrome://tracing or Perfetto;"
    .. " -: a summary on standard error."):format(PROF_STEPS)):argname "FILE"
end
function M.start_prof(o, m)
  M.will_write(o.prof)
  if o.prof then m:prof { steps = PROF_STEPS } end
end
function M.end_prof(o, m)
  if o.prof == "-" then io.stderr:write(tostring(m:prof()), "\n") elseif o.prof then m:prof():save(o.prof) end
end

--- A file that is written at the end: raises at once where it has no directory, or is one.
function M.will_write(path)
  if not path or path == "-" or require("pl.abi").C.pl_host_may_wait(path) then return end
  local is = file.is_directory(path)
  if is or not file.is_directory(path:match "^(.*/)" or ".") then
    error(require("pl.err").new(("%s: %s"):format(path, is and "Is a directory" or "No such file or directory")), 0)
  end
end

function M.json(p) p:flag("--json", "Print one JSON object.") end

--- A wrong call where one of these options was given (names, or { "--in", "input" }: as it is written, and where its
--- value is) and `fits` does not hold, so that it would do nothing. The option must have no default.
function M.only(o, fits, why, names)
  for _, name in ipairs(fits and {} or names) do
    local written, at = name, name
    if type(name) == "table" then written, at = name[1], name[2] end
    if o[at] ~= nil then
      cli.usage(("%s: %s"):format(written:find "^%-%-" and written or "--" .. written:gsub("_", "-"), why))
    end
  end
end

--- Options of M.compute without a use where no model is opened.
M.of_models = { "recipe", "weights", "kv", "kv_scale", "kv_scales", "act", "threads", "path", "host_cache_bytes",
  "disk_cache", "disk_cache_bytes" }

--- Options that choose among tokens, where the likeliest one is always taken.
function M.only_drawn(o)
  M.only(o, (o.temperature or 0) > 0, "wants --temperature above 0", { "top_p", "min_p", "top_k", "seed" })
end

--- Arguments for pl.model.open.
function M.load_options(o, more)
  local t = { recipe = o.recipe, weights = o.weights, act = o.act, kv = o.kv, kv_scale = o.kv_scale,
    kv_scales = o.kv_scales, threads = o.threads, host_cache_bytes = o.host_cache_bytes,
    disk_cache = o.disk_cache, disk_cache_bytes = o.disk_cache_bytes,
    path = o.path ~= "auto" and o.path or nil }
  for k, v in pairs(more or {}) do t[k] = v end
  return t
end

--- Raise what went wrong with a write to standard output: a full disk, a reader that has gone.
function M.written(ok, why)
  if not ok then error(require("pl.err").new("standard output: " .. tostring(why or "cannot be written")), 0) end
end

--- Says that a verb waits for what is typed, where somebody could think that it hangs.
function M.reads_stdin(what)
  local C = require("pl.abi").C
  if C.pl_host_is_tty(0) and C.pl_host_is_tty(2) then
    io.stderr:write(("reading %s from the terminal; Ctrl-D ends it\n"):format(what))
  end
end

--- The prompt that was given, as a text or a list of ids.
function M.prompt_of(o)
  local given = (o.prompt and 1 or 0) + (o.file and 1 or 0) + (o.ids and 1 or 0)
  if given ~= 1 then
    cli.usage(given == 0 and "no text: want one of --prompt, --file and --ids (--file - is standard input)"
      or "want one of --prompt, --file and --ids, not several")
  end
  if o.prompt then return o.prompt end
  if o.file == "-" then M.reads_stdin "the text" end
  if o.file then return file.need(o.file, file.text) end
  local ids = {}
  for part in (o.ids .. ","):gmatch "([^,]*)," do
    local n = tonumber(part)
    if not n or n % 1 ~= 0 or n < 0 or n > 2 ^ 31 - 1 then
      cli.usage(("--ids: %s, want token ids: 1,2,3"):format(require("pl.cli.args").show(part)))
    end
    ids[#ids + 1] = n
  end
  return ids
end

M.EMPTY = "the prompt is empty, want a token in --prompt, --file or --ids"

--- Ids of a prompt that is not empty and fits the model's context; and that context.
function M.ids_of(m, prompt)
  local ids, most = m:ids(prompt), m.fitted.max_context or math.huge
  if #ids == 0 then cli.usage(M.EMPTY) end
  if #ids > most then
    error(require("pl.err").new(("the prompt has %d tokens, the model's context %d"):format(#ids, most)), 0)
  end
  return ids, most
end

return M
