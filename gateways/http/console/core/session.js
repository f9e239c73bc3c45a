/** Who is signed in, in this tab only: the token lies in sessionStorage and goes when the tab closes or signs out. */

const KEY = "iotsphere.token";
let memory = null; // where the browser forbids storage

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

export function keep(text) {
  memory = text;
  try {
    sessionStorage.setItem(KEY, text);
  } catch {
    // then it lasts until the next reload
  }
}

export function forget() {
  memory = null;
  try {
    sessionStorage.clear(); // cursors too: they belong to whoever was signed in
  } catch {
    // there was none
  }
}
