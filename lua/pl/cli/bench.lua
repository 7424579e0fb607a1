-- perilune bench WHAT: one file for each thing that is measured.
local M = { name = "bench", takes = "WHAT ...",
  about = "measure: serve (an engine under load), kernels, models (beside llama.cpp)" }

local whats = { require "pl.cli.bench_serve", require "pl.cli.bench_kernels", require "pl.cli.bench_models" }

function M.options(p)
  p:command_target "what"
  for _, w in ipairs(whats) do w.options(p:command(w.name, w.about)) end
end

function M.run(o)
  for _, w in ipairs(whats) do
    if w.name == o.what then return w.run(o) end
  end
end

return M
