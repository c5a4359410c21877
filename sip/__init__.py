"""SIP calls: signalling by pjsua2 on the event loop, SDP and RTP on the worker's own sockets."""
