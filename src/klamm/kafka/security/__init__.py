"""Security of the server: listeners, logins, TLS, rights.

    endpoints.py   listeners, each with its security protocol
    scram.py, decoys.py   one SCRAM exchange; PLAIN; what users are challenged with that do not exist
    oauth.py, key_download.py   tokens of OAUTHBEARER, and the keys that they are checked with
    login.py       what a connection may send before it has logged in, and when it has to do so again
    certificates.py, principals.py, tls.py   PEM files, whom a certificate stands for, TLS of one connection

Nothing here has a socket; Channel and Session call it.
"""
