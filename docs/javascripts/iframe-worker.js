// The search runs in a Worker, which browsers refuse to pages that are opened from a disk. There an invisible frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      this.receive = (event) => {
        if (event.source !== inner) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      addEventListener("message", this.receive);
      const script = (source) =>
        new Promise((resolve, reject) => {
          const element = inner.document.createElement("script");
          Object.assign(element, { src: source, onload: resolve, onerror: reject });
          inner.document.body.append(element);
        });
      inner.postMessage = (data) => window.dispatchEvent(new MessageEvent("message", { data, source: inner }));
      inner.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => script(source)), Promise.resolve());
      this.ready = script(url);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };
}
