-- wrk: requests for one of many things, drawn anew each time. Arguments: what is drawn (host, route or file), and how many there are.
local kind, count

function init(args)
  kind, count = args[1], tonumber(args[2])
  math.randomseed(7)
end

function request()
  local number = math.random(count) - 1
  local host, path = "localhost", "/"
  if kind == "host" then
    host = "site-" .. number .. ".example.org"
  elseif kind == "route" then
    path = "/of/" .. number
  else
    path = "/" .. number .. ".txt"
  end
  return "GET " .. path .. " HTTP/1.1\r\nHost: " .. host .. "\r\n\r\n"
end
