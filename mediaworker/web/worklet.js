/** In the audio thread: what the microphone hears, as 16-bit samples at 16 kHz, 100 ms at a time. */

const RATE = 16_000, CHUNK = RATE / 10, ZERO_CROSSINGS = 12;

/** Any rate to 16 kHz: a windowed sinc, whose cut-off is below half of the lower rate. */
export class Resampler {
  constructor(rate) {
    this.step = rate / RATE;
    this.cut = Math.min(1, 1 / this.step) * 0.95;
    this.half = Math.ceil(ZERO_CROSSINGS / this.cut);
    this.kept = new Float32Array(2 * this.half);
    this.at = this.half;  // of the next output sample, in `kept` and what comes behind it
  }

  /** The samples that can be told from what has come so far. */
  feed(samples) {
    const input = new Float32Array(this.kept.length + samples.length), out = [];
    input.set(this.kept);
    input.set(samples, this.kept.length);
    for (; this.at + this.half < input.length; this.at += this.step) out.push(this.#sample(input, this.at));
    const used = Math.max(0, Math.floor(this.at) - this.half);
    this.kept = input.slice(used);
    this.at -= used;
    return out;
  }

  #sample(input, at) {
    const first = Math.ceil(at - this.half), last = Math.floor(at + this.half);
    let sum = 0;
    for (let i = Math.max(first, 0); i <= last; i += 1) {
      const x = (i - at) * this.cut, window = Math.cos(Math.PI / 2 * (i - at) / this.half) ** 2;
      sum += input[i] * this.cut * window * (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
    }
    return sum;
  }
}

/** To 16 bits, and nothing wraps. */
export function toInt16(value) {
  return Math.round(Math.max(-1, Math.min(1, value)) * 32767);
}

if (globalThis.registerProcessor) {
  registerProcessor("pcm16", class extends AudioWorkletProcessor {
    #resampler = new Resampler(sampleRate);
    #chunk = new Int16Array(CHUNK);
    #filled = 0;
    #peak = 0;

    process([[samples]]) {
      for (const value of samples ? this.#resampler.feed(samples) : []) {
        this.#chunk[this.#filled] = toInt16(value);
        this.#peak = Math.max(this.#peak, Math.abs(value));
        this.#filled += 1;
        if (this.#filled === CHUNK) this.#post();
      }
      return true;
    }

    #post() {
      this.port.postMessage({ pcm: this.#chunk.buffer, peak: this.#peak }, [this.#chunk.buffer]);
      this.#chunk = new Int16Array(CHUNK);
      this.#filled = this.#peak = 0;
    }
  });
}
