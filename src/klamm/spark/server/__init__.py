"""A store behind `klamm serve`, for processes that do not see its files: Kafka's protocol on raw sockets.

    address          which server, and how to log in: the options
    scram            the client's side of SCRAM
    connection       one connection: requests and responses
    client           the server: topics, offsets, who leads a partition; tries again while the server restarts
    remote_store     what planner and tasks ask of a store and its logs, answered by the server

Tasks need no package but those that reading a directory needs. Nothing here knows Spark.
"""
