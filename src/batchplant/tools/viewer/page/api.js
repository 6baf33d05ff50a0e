// Requests to the server. All paths are relative: the token is part of the page's own address.

export class ApiError extends Error {
  constructor(error, status) {
    super(error.message);
    Object.assign(this, { place: error, status });
  }
}

/** The address of api/PATH with parameters; what is empty is left out, a list is given one by one. */
export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) for (const item of value) query.append(name, item);
    else if (value !== undefined && value !== null && value !== "" && value !== false) query.set(name, value === true ? "1" : value);
  }
  const text = query.toString();
  return `api/${path}${text ? `?${text}` : ""}`;
}

/** The JSON that api/PATH answers. */
export async function ask(path, params = {}, signal = undefined) {
  const response = await fetch(address(path, params), { signal });
  let value = null;
  try {
    value = await response.json();
  } catch {
    throw new ApiError({ message: `the server answered ${response.status}` }, response.status);
  }
  if (!response.ok) throw new ApiError(value.error ?? { message: `the server answered ${response.status}` }, response.status);
  return value;
}

/** Asks until a job is ready; told(done, of) hears of its progress. */
export async function wait(path, params = {}, told = () => {}, signal = undefined) {
  for (let pause = 50; ; pause = Math.min(pause * 1.5, 1000)) {
    const answer = await ask(path, params, signal);
    if (answer.state === "ready") return answer.value;
    if (answer.state === "failed") throw new ApiError(answer.error, 422);
    told(answer.done, answer.of);
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, pause);
      signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
    });
  }
}
