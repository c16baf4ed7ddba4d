"""A gRPC server and a client of it. The server's port is printed, and the client's target is read from the standard input.

With the files of a key and of a chain as arguments, the server speaks TLS.
"""

import sys
import threading
from concurrent import futures

import grpc

held = threading.Event()


def unary(request, context):
    if request == b"metadata":
        context.set_trailing_metadata((("x-trail", "after"), ("x-trail-bin", b"\x00\xff")))
        return dict(context.invocation_metadata()).get("x-asked", "").encode()
    if request == b"fail":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "nicht so, 50%")
    if request == b"hold":
        context.add_callback(held.set)
        held.wait(20)
    return request[::-1]


def server_stream(request, context):
    for number in range(int(request)):
        yield b"%d" % number * 1000


def client_stream(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def both(requests, context):
    for request in requests:
        yield request.upper()


def serve():
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
        "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))
    if len(sys.argv) > 1:
        key, chain = (open(path, "rb").read() for path in sys.argv[1:])
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    return server


def outcome(call):
    try:
        return call()
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"


def ask(channel):
    unary = channel.unary_unary("/test.Service/Unary")
    print("unary", unary(b"hello", timeout=20))
    response, call = unary.with_call(b"metadata", metadata=(("x-asked", "value"),), timeout=20)
    trailing = {key: value for key, value in call.trailing_metadata() if key.startswith("x-")}
    print("metadata", response, trailing)
    print("fail", outcome(lambda: unary(b"fail", timeout=20)))
    print("missing", outcome(lambda: channel.unary_unary("/test.Service/None")(b"", timeout=20)))
    print("large", len(unary(b"x" * 3_000_000, timeout=20)))

    pieces = list(channel.unary_stream("/test.Service/ServerStream")(b"300", timeout=20))
    print("server stream", len(pieces), sum(map(len, pieces)))
    print("client stream", channel.stream_unary("/test.Service/ClientStream")((b"y" * 10_000 for _ in range(100)), timeout=20))

    # Each message waits for the answer to the one before it: nothing may be held back.
    answered = threading.Semaphore(1)

    def ping():
        for number in range(50):
            answered.acquire()
            yield b"ping %d" % number

    count = 0
    for pong in channel.stream_stream("/test.Service/Both")(ping(), timeout=20):
        assert pong == b"PING %d" % count, pong
        count += 1
        answered.release()
    print("both", count)

    print("deadline", outcome(lambda: unary(b"hold", timeout=0.3)).split(":")[0])
    print("the server has seen the end", held.wait(20))
    held.clear()
    call = unary.future(b"hold", timeout=20)
    threading.Timer(0.2, call.cancel).start()
    print("cancelled", cancelled(call))
    print("the server has seen the end", held.wait(20))

    # Clients that cancel every other call are not punished.
    for number in range(1200):
        call = unary.future(b"quick", timeout=20)
        if number % 2:
            call.cancel()
        elif call.result() != b"kciuq":
            print("wrong")
    print("after cancelling", unary(b"still", timeout=20))


def cancelled(call):
    try:
        call.result()
    except grpc.FutureCancelledError:
        return True
    return False


def main():
    print("version", grpc.__version__, flush=True)
    server = serve()
    target = sys.stdin.readline().strip()
    with grpc.insecure_channel(target) as channel:
        ask(channel)
        server.stop(None).wait()
        print("stopped", outcome(lambda: channel.unary_unary("/test.Service/Unary")(b"x", timeout=20)))


main()
