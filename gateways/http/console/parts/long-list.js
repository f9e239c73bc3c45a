/** A list of any length of which only the lines in sight are drawn; arrow keys walk along it. */

import { render } from "../vendor/lit/lit-html.js";
import { repeat } from "../vendor/lit/directives/repeat.js";
import { beforeNextFrame } from "../core/view.js";

const AHEAD = 6; // lines drawn beyond each edge

export class LongList {
  #root;
  #space;
  #rows;
  #height;
  #line;
  #items = [];
  #key;
  #active = 0;
  #paint = () => this.#draw();

  /** `height`: of a line, pixels. `line(item, index)`: its template. `key(item, index)`: what tells
   *  lines apart; the index alone lets lines that change all the time be written anew in place. */
  constructor(root, { height, line, key, label }, signal) {
    this.#height = height;
    this.#line = line;
    this.#key = key;
    this.#root = root;
    root.classList.add("long");
    root.setAttribute("role", "list");
    root.setAttribute("aria-label", label);
    this.#space = document.createElement("div");
    this.#space.className = "space";
    this.#rows = document.createElement("div");
    this.#rows.className = "rows";
    this.#space.append(this.#rows);
    root.append(this.#space);
    root.addEventListener("scroll", this.#paint, { passive: true, signal });
    root.addEventListener("keydown", (event) => this.#walk(event), { signal });
    const size = new ResizeObserver(() => this.update());
    size.observe(root);
    signal.addEventListener("abort", () => size.disconnect());
  }

  get items() {
    return this.#items;
  }

  /** Show other items. `keep`: so many came on top; what is in sight stays there. */
  show(items, keep = 0) {
    this.#items = items;
    if (keep && this.#root.scrollTop > 0) this.#root.scrollTop += keep * this.#height;
    this.update();
  }

  /** Show the beginning. */
  toTop() {
    this.#root.scrollTop = 0;
  }

  /** Walk into the list: its first line has the focus then. */
  enter() {
    this.toTop();
    this.#draw();
    this.#rows.querySelector("[data-index]")?.focus();
  }

  update() {
    beforeNextFrame(this.#paint);
  }

  #draw() {
    const root = this.#root;
    const first = Math.max(0, Math.floor(root.scrollTop / this.#height) - AHEAD);
    const last = Math.min(this.#items.length, Math.ceil((root.scrollTop + root.clientHeight) / this.#height) + AHEAD);
    this.#space.style.height = `${this.#items.length * this.#height}px`;
    this.#rows.style.transform = `translateY(${first * this.#height}px)`;
    const seen = this.#items.slice(first, last);
    render(repeat(seen, this.#key, (item, index) => this.#line(item, first + index)), this.#rows);
    let index = first;
    for (const child of this.#rows.children) {
      child.style.height = `${this.#height}px`;
      child.dataset.index = index++;
      child.setAttribute("aria-setsize", this.#items.length);
      child.setAttribute("aria-posinset", index);
    }
  }

  #walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    const from = event.target.closest("[data-index]");
    if (!step || !from || !this.#items.length) return;
    event.preventDefault();
    this.#active = Math.min(this.#items.length - 1, Math.max(0, Number(from.dataset.index) + step));
    const top = this.#active * this.#height;
    const root = this.#root;
    if (top < root.scrollTop) root.scrollTop = top;
    if (top + this.#height > root.scrollTop + root.clientHeight) root.scrollTop = top + this.#height - root.clientHeight;
    this.#draw();
    this.#rows.querySelector(`[data-index="${this.#active}"]`)?.focus();
  }
}
