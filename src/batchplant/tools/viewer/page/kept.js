// What a browser keeps for the next time: size, theme. Some keep nothing, as in a frame of a notebook.

export function get(name) {
  try {
    return localStorage.getItem(`batchplant-${name}`);
  } catch {
    return null;
  }
}

export function set(name, value) {
  try {
    localStorage.setItem(`batchplant-${name}`, value);
  } catch {
    // It stays as it is until the page is closed.
  }
}
