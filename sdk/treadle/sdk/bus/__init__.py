"""JetStream as the rest of Treadle sees it: a connection, a store with compare-and-set, a puller.

    wire.py         frames, headers and messages of the NATS protocol; pure
    nats_link.py    the one file that touches nats-py, which connects, authenticates, reconnects
    handshake.py    the first connection, and which servers will do
    replies.py      who waits for which answer
    connection.py   publish, subscribe, request
    acks.py         what JetStream answers, and its errors
    jetstream.py    store, compare-and-set, read back, purge, create
    retrying.py     how long to try again
    assets.py       streams and consumers, created or accepted
    reading.py      many stored messages in one go
    puller.py       a consumer's messages, with credit
    doorbell.py     a wake-up for readers

Nothing here knows what a run or a step is. Import from the modules; this one exports nothing.
"""
