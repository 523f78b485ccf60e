"""Opens reports in a browser."""

from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
)
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => rgba(color).slice(0, 3).map((part) => part / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
    return "white";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *, .xtick text, .ytick text")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility() || element.closest("script, noscript")) continue;
    const style = getComputedStyle(element);
    const ink = element instanceof SVGElement ? style.fill : style.color;
    const pair = [light(ink), light(behind(element))].sort((a, b) => b - a);
    found.push([(pair[0] + 0.05) / (pair[1] + 0.05), element.outerHTML.slice(0, 120)]);
  }
  return found;
}"""


class Pages:
    """Opens reports, and keeps what browsers complain about and which requests leave the file."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.troubles: list[str] = []
        self.contexts: list[Any] = []

    def open(
        self, path: Path, width: int = 1440, scheme: str = "light", charts: bool = True
    ) -> Any:
        size = {"width": width, "height": 900}
        context = self.browser.new_context(viewport=size, color_scheme=scheme, offline=True)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.troubles.append(f"{message.type} {message.text}"))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("request", self.requested)
        page.goto(path.as_uri())
        if charts:
            page.wait_for_function("document.querySelectorAll('.chart .main-svg').length > 0")
        return page

    def requested(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.troubles.append(f"request to {request.url}")

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        assert self.troubles == []
