-- All filters by name: `x | NAME(...)`. Each takes the value, the arguments { n, ... } and the arguments by name.
local all = {}
for _, part in ipairs { "texts", "lists" } do
  for name, f in pairs(require("pl.jinja.filter_" .. part)) do all[name] = f end
end
return all
