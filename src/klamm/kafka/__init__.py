"""Door 2: Kafka's protocol, for any Kafka client, on the files that embedded processes use at the same time.

server, listener, connection    sockets: frames in, answers out
call, broker, apis              requests, what their handlers share, the handlers
parking, syncing, pools         what the loop does not wait for
coordinator, group_store        groups: a state machine, and what of it is in the store
transaction_desk                transactional producers
service, background             a server and what watches it: for `klamm serve`, for `klamm.server`
wire                            bytes
"""
