-- wrk: sixteen requests in each write.
init = function(args)
  local requests = {}
  for i = 1, 16 do
    requests[i] = wrk.format()
  end
  burst = table.concat(requests)
end

request = function()
  return burst
end
