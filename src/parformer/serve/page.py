"""What does one see at `/`: text in, tokens out as they come, speed and memory beside them."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
textarea, pre { width: 100%; box-sizing: border-box; font: 15px/1.5 ui-monospace, monospace }
pre { white-space: pre-wrap; min-height: 8rem; padding: .75rem; border: 1px solid #8886 }
label { margin-right: 1rem } input[type=number] { width: 5rem } button { padding: .3rem 1rem }
#told { color: #777; font-size: .9rem } .written { background: #4a83 }
"""

SCRIPT = """
const at = id => document.getElementById(id)
let stopping = null
const headers = () => {
  const key = at('key').value
  const own = key ? {Authorization: 'Bearer ' + key} : {}
  return Object.assign({'Content-Type': 'application/json'}, own)
}
async function write() {
  if (stopping) { stopping.abort(); return }
  stopping = new AbortController()
  at('go').textContent = 'Stop'
  const shown = document.createElement('span')
  shown.className = 'written'
  at('text').replaceChildren(at('prompt').value, shown)
  const began = performance.now()
  let first = 0, tokens = 0
  try {
    const body = {prompt: at('prompt').value, stream: true, max_tokens: +at('tokens').value,
      temperature: +at('temperature').value, stream_options: {include_usage: true}}
    const answer = await fetch('/v1/completions',
      {method: 'POST', headers: headers(), body: JSON.stringify(body), signal: stopping.signal})
    if (!answer.ok) throw new Error((await answer.json()).error.message)
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
    let rest = ''
    for (;;) {
      const {done, value} = await reader.read()
      if (done) break
      const lines = (rest + value).split('\\n\\n')
      rest = lines.pop()
      for (const line of lines) {
        if (line === 'data: [DONE]') continue
        const piece = JSON.parse(line.slice(6))
        if (piece.error) throw new Error(piece.error.message)
        first = first || performance.now()
        if (piece.usage) tokens = piece.usage.completion_tokens
        if (piece.choices.length) shown.textContent += piece.choices[0].text
      }
    }
    const seconds = (performance.now() - began) / 1000
    at('told').textContent = `${tokens} tokens, ${(tokens / seconds).toFixed(1)} a second, ` +
      `the first after ${(first - began).toFixed(0)} ms${await memory()}`
  } catch (error) {
    at('told').textContent = error.name === 'AbortError' ? 'Stopped.' : error.message
  }
  stopping = null
  at('go').textContent = 'Write'
}
async function memory() {
  const answer = await fetch('/metrics', {headers: headers()})
  const found = /^parformer_peak_memory_bytes (\\S+)/m.exec(await answer.text())
  return found ? `; the server held ${(found[1] / 1e6).toFixed(0)} MB at most` : ''
}
at('go').addEventListener('click', write)
fetch('/health').then(a => a.json()).then(told => { at('name').textContent = told.model })
"""

PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Parformer</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><h1 id="name">Parformer</h1>
<textarea id="prompt" rows="4" aria-label="Text to go on with"></textarea>
<p><label>tokens <input id="tokens" type="number" value="200" min="1"></label>
<label>temperature
<input id="temperature" type="number" value="0.8" step="0.1" min="0" max="2"></label>
<label>key <input id="key" type="password" autocomplete="off"></label>
<button id="go">Write</button></p>
<pre id="text"></pre><p id="told" role="status"></p>
<script>{SCRIPT}</script></body></html>
"""


def allowed(text: str) -> str:
    """A part of the page by its hash: nothing else may run or style it."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


POLICY = (
    f"default-src 'none'; script-src {allowed(SCRIPT)}; style-src {allowed(STYLE)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
