"""Door 2: Kafka's protocol, for any Kafka client, on the files that embedded processes use at the same time.

server, listener                connections, and what they share
channel, session, admission     a request's way: bytes, whose they are, whether it may be handled
call, broker, apis              requests, what their handlers share, the handlers
fetch_sessions                  what a consumer has asked for, and knows
purgatory, sync_queue, pools    what the loop does not wait for
group_coordinator, group_store  groups: a state machine, and what of it is in the store
transaction_coordinator         transactional producers
service, background             a server and what watches it: for `klamm serve`, for `klamm.server`
wire                            bytes
"""
