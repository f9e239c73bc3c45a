/** The HTTP API with the token of whoever is signed in; failures become errors that say what to do. */

export class ApiError extends Error {
  constructor(status, { code, message, retry, current }) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, code, retry, current });
  }
}

async function failed(answer) {
  let told = { code: `http_${answer.status}`, message: `the gateway answered ${answer.status}`, retry: false };
  try {
    const body = await answer.json();
    told = { ...told, ...body.error, current: body.current ?? body.error?.current };
  } catch {
    // no JSON: a proxy in between answered
  }
  return new ApiError(answer.status, told);
}

/** `tokenOf`: the token of now. `ended`: called when the token counts no longer. */
export function makeApi(tokenOf, ended) {
  async function call(method, path, { query, body, signal } = {}) {
    const url = new URL(path, location.origin);
    for (const [name, value] of Object.entries(query ?? {}))
      for (const each of Array.isArray(value) ? value : [value])
        if (each !== undefined && each !== null && each !== "") url.searchParams.append(name, each);
    const headers = { authorization: `Bearer ${tokenOf()}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    const answer = await fetch(url, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store",
    });
    if (answer.ok) return answer;
    const error = await failed(answer);
    if (error.status === 401) ended(error);
    throw error;
  }
  const json = async (...asked) => (await call(...asked)).json();
  return {
    get: (path, query, signal) => json("GET", path, { query, signal }),
    text: async (path, signal) => (await call("GET", path, { signal })).text(),
    post: (path, body, signal) => json("POST", path, { body, signal }),
    patch: (path, body, signal) => json("PATCH", path, { body, signal }),
    delete: async (path, signal) => void (await call("DELETE", path, { signal })),
  };
}

/** Redeem a sign-in code for a token. The code travels in a header, never in an address. */
export async function redeem(code) {
  const answer = await fetch("api/v1/session", {
    method: "POST", headers: { authorization: `Code ${code}` }, credentials: "omit", cache: "no-store",
  });
  if (!answer.ok) throw await failed(answer);
  return (await answer.json()).token;
}

/** One part of a path, whatever it holds. */
export const part = (text) => encodeURIComponent(text);
