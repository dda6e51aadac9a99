"""gRPC, once and for all services: a server with health, reflection, our errors and a graceful stop; client channels.

grpc enters specgrove through this package alone; services import the few names of it that they need from here.
"""

from grpc import RpcError, StatusCode
from grpc.aio import EOF, AioRpcError, Channel, Metadata, ServicerContext

from specgrove.rpc.channel import open_blocking_channel, open_channel
from specgrove.rpc.limits import DEFAULT_MAX_MESSAGE_BYTES
from specgrove.rpc.server import GrpcServer
from specgrove.rpc.signals import wait_for_signal
from specgrove.rpc.status import error_from_rpc

__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "EOF",
    "AioRpcError",
    "Channel",
    "GrpcServer",
    "Metadata",
    "RpcError",
    "ServicerContext",
    "StatusCode",
    "error_from_rpc",
    "open_blocking_channel",
    "open_channel",
    "wait_for_signal",
]
