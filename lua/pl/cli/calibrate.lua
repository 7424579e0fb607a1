-- perilune calibrate: scales of an FP8 cache, from the keys and values that a model makes of a text.
local common = require "pl.cli.common"
local M = { name = "calibrate", takes = "MODEL", about = "scales of an fp8 cache, from a text" }

function M.options(p)
  common.compute(p, false, true) -- what is measured is in f32
  common.prompt(p)
  p:option("--window", "Tokens of the text that are run as one sequence. Default: the model's context, at most 2048.")
    :convert(common.whole(2)):argname "N"
  p:option("--out", "Where the scales go, as JSON."):argname "FILE"
end

function M.run(o)
  if not o.out then require("pl.cli").usage "--out: nothing given, want FILE" end
  local prompt = common.prompt_of(o)
  common.will_write(o.out)
  local load = common.load_options(o, { batch = 1 })
  load.act, load.kv = "f32", "f32" -- what is measured is not rounded before
  local m = require("pl.model").open(o.model, load)
  local ids = m:ids(prompt)
  if #ids == 0 then require("pl.cli").usage(common.EMPTY) end
  local window = o.window or math.min(m.fitted.max_context or 2048, 2048)
  local scales, n = m:start(window):calibrate(ids, window)
  require("pl.file").write(o.out, require("pl.json").encode(scales) .. "\n")
  io.stderr:write(("scales of %d layers, %d heads from %d tokens: %s\n"):format(scales.layers, scales.heads, n, o.out))
  m:close()
  return 0
end

return M
