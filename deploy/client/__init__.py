"""The client: read events, ask a Triton server, write results, draw displays.

An event's way: :mod:`.tables` (what a file's tables look like) to :mod:`.events`
(one event's tensors) to :mod:`.inference` (send, retry) over a :mod:`.transport`
(HTTP or gRPC, to an :mod:`.endpoint`) to :mod:`.answers` (labels and scores per hit), then
to :mod:`.results` (HDF5) and :mod:`.display` (PNG). :mod:`.command` is ``scripts/infer.py``;
:mod:`.diagnosis` says what is in the way of a connection.
"""
