// Search runs in a worker, and a browser allows none in a page that is opened from a folder. There, a hidden frame does its work.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      const worker = this
      const page = this.inside.document
      this.inside.postMessage = (data) => worker.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) => Promise.all(urls.map((each) => new Promise((resolve) => {
        const script = page.createElement("script")
        script.onload = resolve
        script.src = each
        page.body.append(script)
      })))
      this.isReady = new Promise((resolve) => {
        const script = page.createElement("script")
        script.onload = resolve
        script.src = url
        page.body.append(script)
      })
    }

    postMessage(data) {
      this.isReady.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
  window.Worker = window.IFrameWorker
}
