"""The laboratory: everything that tests, tools and benchmarks share and that no user gets. It is not in the wheel.

    worker/    the worker as a real process, what it must be given and what it answers: settings, calls, jobs, clusters
    sip/       phones, SIPp and its scenarios, registrars, Kamailio, rtpengine, RTP by hand, PJSIP's clock
    asterisk/  a real Asterisk with its configuration, and its side of AudioSocket and of WebSocket channels
    calls/     calls and legs without an ingress or without an engine, that record what is done to them
    engine/    small models, engines that fail, what the libraries answer, a GPU's streams and graphs on a CPU
    media/     recorded speech, files with known words, hostile files, the reference for a leg's timeline
    events/    samples of every event, what must hold of a call's events, a client that is cut off and resumes
    http/      the HTTP side alone, Chromium and the page, collectors, webhooks' receivers, transcription servers
    network/   free ports, certificates, NAT and STUN, NATS, HAProxy, a proxy that cuts connections
    deploy/    the manifests and the alert rules as a test reads them
    chaos/     kills, power cuts and floods under live calls, and what must hold afterwards

`lab` imports the product and nothing of `tests`; a test module imports no other test module. Recordings are in
tests/data.
"""
