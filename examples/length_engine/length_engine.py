"""An engine for mediaworker that answers with the length of the audio."""

from asr.engines.interface import BYTES_PER_S, Answer, Capabilities


class LengthEngine:
    name = "length"
    capabilities = Capabilities(batch=8, longest_s=60.0)

    def __init__(self):
        self.utterances = {}  # id → (bytes a second, bytes)

    def open(self, utterance):
        self.utterances[utterance.id] = BYTES_PER_S[utterance.format], bytearray()

    def append(self, utterance_id, audio):
        self.utterances[utterance_id][1].extend(audio)

    def close(self, utterance_id):
        del self.utterances[utterance_id]

    def runnable(self, request):
        return True

    def step(self, requests):
        return [Answer(request, self.length(request), "en") for request in requests]

    def length(self, request):
        bytes_per_s, audio = self.utterances[request.utterance_id]
        return f"{len(audio[: request.end]) / bytes_per_s:.1f} seconds"

    def warm_up(self): ...


class LengthPlugin:
    languages, words = ("en",), False

    def about(self, asr):
        return "the length of the audio"

    def missing(self, asr):
        return None

    def create(self, asr, qwen):
        return LengthEngine()


plugin = LengthPlugin()
