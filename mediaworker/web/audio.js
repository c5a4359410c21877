/** Audio of this browser to the worker: `WS /ws/asr`, from the microphone or from a file. No DOM. */

import { toInt16 } from "./worklet.js";

const RATE = 16_000, CHUNK = RATE / 10;
const WAITING_BYTES = 256_000;  // 8 s of audio that the worker has not taken: no more until it has
const LOOK_MS = 20;
const CONNECT_MS = 10_000, STUCK_MS = 30_000;
const LAST_MS = 300_000;  // the last words wait for a model that is being loaded
const SAME = 0.01;  // a mono recording in two channels differs by less, coded as it may be

/** What went wrong, said for a person. */
export class AudioError extends Error {}

/** A session on `/ws/asr`. `begin` resolves to the id of the call that the worker has opened for it. */
export class Session {
  #socket; #onEnd; #timer; #finalized = false;

  /** @param onEnd  Called once, with what went wrong or null. */
  constructor(client, onEnd) {
    this.#onEnd = onEnd;
    this.#socket = client.socket("ws/asr");
    this.#socket.binaryType = "arraybuffer";
  }

  begin(language, channels = 1) {
    const socket = this.#socket;
    return new Promise((resolve, reject) => {
      this.#expect(CONNECT_MS, reject);
      let opened = false, error = null;
      socket.onopen = () => {
        opened = true;
        socket.send(JSON.stringify({ type: "config", encoding: "pcm_s16le", sample_rate: RATE, language, channels }));
      };
      socket.onmessage = ({ data }) => {
        const message = JSON.parse(data);
        if (this.#finalized) this.#expect(LAST_MS);
        if (message.type === "session_created") {
          clearTimeout(this.#timer);
          resolve(message.call_id);
        } else if (message.type === "error") error = message.message || message.code;
      };
      socket.onclose = ({ code }) => {
        clearTimeout(this.#timer);
        if (!opened) error = "The worker does not take audio from here: the key may lack the scope `stream`, or all "
          + "sessions are taken.";
        else if (code !== 1000) error ??= `The worker closed the connection (${code}).`;
        reject(new AudioError(error ?? "The worker closed the connection."));  // without effect once it has begun
        this.#onEnd(error);
      };
    });
  }

  send(pcm) {
    if (this.#socket.readyState === 1) this.#socket.send(pcm);
  }

  /** What is on its way, bytes. */
  get waiting() {
    return this.#socket.bufferedAmount;
  }

  get open() {
    return this.#socket.readyState <= 1;
  }

  /** The last final comes, and then the end. */
  finalize() {
    if (this.#socket.readyState === 1) {
      this.#socket.send(JSON.stringify({ type: "finalize" }));
      this.#finalized = true;
      this.#expect(LAST_MS);
    } else if (this.#socket.readyState === 0) this.abandon();
  }

  /** @param [reason]  What went wrong; null before it has begun. */
  abandon(reason = null) {
    clearTimeout(this.#timer);
    this.#socket.onclose = this.#socket.onmessage = null;
    this.#socket.close();
    this.#onEnd(reason);
  }

  /** A line may die without a word: what does not come in time comes no more. */
  #expect(ms, reject = () => {}) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      const text = "The worker does not answer.";
      reject(new AudioError(text));
      this.abandon(text);
    }, ms);
  }
}

/** Start listening; `onAudio` gets 16-bit samples and their peak. Returns how to stop. Throws AudioError. */
export async function microphone(onAudio) {
  if (!isSecureContext || !navigator.mediaDevices) {
    throw new AudioError("A browser gives its microphone to secure pages only: open this one by https or localhost.");
  }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  } catch (error) {
    const denied = error.name === "NotAllowedError";
    throw new AudioError(denied ? "The microphone was denied. Allow it for this page, in the address bar."
                                : `There is no microphone to be had (${error.name}).`);
  }
  const context = new AudioContext();
  await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
  const mono = { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" };
  const node = new AudioWorkletNode(context, "pcm16", mono);
  node.port.onmessage = ({ data }) => onAudio(data.pcm, data.peak);
  context.createMediaStreamSource(stream).connect(node);
  return async () => {
    stream.getTracks().forEach((track) => track.stop());
    await context.close();
  };
}

/** A file's samples at 16 kHz: {samples, channels}. Two channels stay apart, interleaved, unless both say the same; more
 * are mixed. Throws AudioError. */
export async function decode(file) {
  const context = new OfflineAudioContext(2, 1, RATE);
  let audio;
  try {
    audio = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new AudioError("This browser cannot read that file as audio.");
  }
  const data = Array.from({ length: audio.numberOfChannels }, (_, index) => audio.getChannelData(index));
  if (data.length === 2 && data[0].some((sample, at) => Math.abs(sample - data[1][at]) > SAME)) {
    const samples = Int16Array.from({ length: 2 * audio.length }, (_, at) => toInt16(data[at % 2][at >> 1]));
    return { samples, channels: 2 };
  }
  const samples = Int16Array.from({ length: audio.length }, (_, at) =>
    toInt16(data.reduce((sum, channel) => sum + channel[at], 0) / data.length));
  return { samples, channels: 1 };
}

/** Send samples of so many channels, as they would be spoken or as fast as they are taken; `onProgress` gets the part that is done. */
export async function play(session, { samples, channels }, { realTime, signal, onProgress }) {
  const began = performance.now(), step = CHUNK * channels;
  for (let at = 0; at < samples.length && session.open && !signal.aborted; at += step) {
    session.send(samples.slice(at, at + step));
    onProgress(Math.min(1, (at + step) / samples.length));
    const due = () => began + (at + step) / channels / RATE * 1000 - performance.now();
    const wait = () => new Promise((resolve) => setTimeout(resolve, realTime ? Math.max(due(), 0) : LOOK_MS));
    if (realTime) await wait();
    let least = Infinity, since = performance.now();
    while (session.waiting > WAITING_BYTES && session.open && !signal.aborted) {
      await wait();
      if (session.waiting < least) [least, since] = [session.waiting, performance.now()];
      else if (performance.now() - since > STUCK_MS) return session.abandon("The worker takes no more audio.");
    }
  }
}
