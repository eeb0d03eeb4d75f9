"""Who a client is, and how it gets in: listeners, logins, TLS.

    endpoints.py   listeners, each with its security protocol
    scram.py       one SCRAM exchange; PLAIN
    login.py       what a connection may send before it has logged in, and when it has to do so again
    certificates.py, principals.py, tls.py   PEM files, whom a certificate stands for, TLS of one connection

Nothing here has a socket; Channel and Session call it.
"""
