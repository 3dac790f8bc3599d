"""The loaders that `framedex bench --compare` knows, by name."""

from __future__ import annotations

from framedex.bench.cpu_peers import ApproximateTorchCodec, Decord, OpenCv, Spdl, TorchCodec
from framedex.bench.gpu_peers import DaliDecoders, DaliReaders, PyNvVideoCodec
from framedex.bench.peer import Peer

ON_CPU: tuple[Peer, ...] = (OpenCv(), Decord(), TorchCodec(), ApproximateTorchCodec(), Spdl())
ON_GPU: tuple[Peer, ...] = (DaliDecoders(), DaliReaders(), PyNvVideoCodec())
PEERS: dict[str, Peer] = {peer.name: peer for peer in ON_GPU + ON_CPU}  # in the order in which they run
