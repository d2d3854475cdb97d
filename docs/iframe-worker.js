// Search in pages that are opened as files: browsers start no worker there, so the script of the worker runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = Object.assign(document.createElement("iframe"), { hidden: true })
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = Object.assign(frame.contentDocument.createElement("script"), { src: new URL(url, location.href).href })
      this.started = new Promise(resolve => (script.onload = resolve))
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      this.started.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
