-- wrk: the requests of a profile of HttpArena, in turn. Argument: the profile.
local requests, turn = {}, 0

local function add(method, target, fields, body)
  local head = method .. " " .. target .. " HTTP/1.1\r\nHost: localhost\r\n"
  if body then
    head = head .. "Content-Length: " .. #body .. "\r\n"
  end
  table.insert(requests, head .. (fields or "") .. "\r\n" .. (body or ""))
end

local function sums(fields)
  local target = "/baseline11?a=13&b=42"
  add("GET", target, fields)
  add("POST", target, "Content-Type: text/plain\r\n" .. (fields or ""), "20")
  add("POST", target, "Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n" .. (fields or ""))
  requests[#requests] = requests[#requests] .. "2\r\n20\r\n0\r\n\r\n"
end

local function pages(pairs, fields)
  for _, pair in ipairs(pairs) do
    add("GET", "/json/" .. pair[1] .. "?m=" .. pair[2], fields)
  end
end

local all = { { 1, 3 }, { 5, 7 }, { 10, 2 }, { 15, 5 }, { 25, 4 }, { 40, 8 }, { 50, 6 } }
local files = {
  "reset.css", "layout.css", "theme.css", "components.css", "utilities.css", "analytics.js", "helpers.js", "app.js", "vendor.js",
  "router.js", "header.html", "footer.html", "regular.woff2", "bold.woff2", "logo.svg", "icon-sprite.svg", "hero.webp", "thumb1.webp",
  "thumb2.webp", "manifest.json",
}

local profiles = {
  ["baseline"] = function() sums() end,
  -- Ten requests a connection: the last one asks the server to close it.
  ["limited-conn"] = function()
    for _ = 1, 3 do sums() end
    add("GET", "/baseline11?a=13&b=42", "Connection: close\r\n")
  end,
  ["json"] = function() pages(all) end,
  ["json-comp"] = function() pages({ { 25, 4 }, { 40, 8 }, { 50, 6 } }, "Accept-Encoding: gzip, br\r\n") end,
  ["upload"] = function()
    for _, size in ipairs({ 500 * 1024, 2 * 1024 * 1024, 10 * 1024 * 1024, 20 * 1024 * 1024 }) do
      add("POST", "/upload", "Content-Type: application/octet-stream\r\n", string.rep("a", size))
    end
  end,
  ["static"] = function()
    for _, name in ipairs(files) do
      add("GET", "/static/" .. name, "Accept-Encoding: br;q=1, gzip;q=0.8\r\n")
    end
  end,
  ["async-db"] = function()
    for _, limit in ipairs({ 5, 10, 20, 35, 50 }) do
      add("GET", "/async-db?min=10&max=50&limit=" .. limit)
    end
  end,
  -- Five requests a connection.
  ["api-4"] = function()
    local database = "/async-db?min=10&max=50&limit=20"
    add("GET", "/baseline11?a=1&b=2")
    add("GET", "/json/5?m=7")
    add("GET", database)
    add("GET", "/baseline11?a=1&b=2")
    add("GET", "/json/25?m=4", "Connection: close\r\n")
    add("GET", "/baseline11?a=1&b=2")
    add("GET", database)
    add("GET", "/json/50?m=6")
    add("GET", "/baseline11?a=1&b=2")
    add("GET", "/json/10?m=2", "Connection: close\r\n")
  end,
}

function init(args)
  profiles[args[1]]()
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end
