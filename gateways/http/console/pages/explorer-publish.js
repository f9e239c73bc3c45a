/** Publish a message by hand, with the answer that any sender would get. */

import { html, render } from "../vendor/lit/lit-html.js";
import { icon } from "../parts/icons.js";
import { toast } from "../parts/toast.js";

export function publishDialog({ api, domain, leave }, like) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "publish");
  document.body.append(dialog);
  const topic = like?.metadata.topic ?? `${domain}/devices/my-device/telemetry/temperature`;
  const payload = like ? JSON.stringify(like.payload, null, 2) : '{"value": 21.5}';
  let problem = "";
  const close = () => dialog.remove();
  leave.addEventListener("abort", close, { once: true });
  dialog.addEventListener("close", close);

  async function send(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      const body = { topic: form.get("topic"), payload: JSON.parse(form.get("payload")), retain: form.get("retain") === "on" };
      const { results } = await api.post("api/v1/messages", body, leave);
      toast(`It is in the log: ${results[0].position ?? results[0].message_id}`);
      dialog.close();
    } catch (error) {
      problem = error instanceof SyntaxError ? `This is no JSON: ${error.message}` : `${error.code ?? ""} ${error.message}`.trim();
      draw();
    }
  }

  const draw = () =>
    render(
      html`<form class="inside" @submit=${send}>
        <h2 id="publish">Publish a message</h2>
        <label class="field"><span>Topic</span><input name="topic" class="mono" required .value=${topic} spellcheck="false" /></label>
        <label class="field"><span>Payload, any JSON</span><textarea name="payload" class="mono" rows="7" spellcheck="false" .value=${payload}></textarea></label>
        <label class="row"><input type="checkbox" name="retain" /> Keep it as the topic's retained value</label>
        ${problem ? html`<p class="problem" role="alert">${problem}</p>` : ""}
        <div class="actions">
          <button type="button" class="button" @click=${() => dialog.close()}>Cancel</button>
          <button class="button primary">${icon("send")}Publish</button>
        </div>
      </form>`,
      dialog,
    );
  draw();
  dialog.showModal();
}
